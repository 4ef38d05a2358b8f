"""Looks for what a graph cannot hold, without making one: check, lint, and their reports."""
