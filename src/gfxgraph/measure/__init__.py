"""Benches, reports and the demo: what a graph gains on this machine."""
