"""Tests of the README and of the pages in docs/."""
