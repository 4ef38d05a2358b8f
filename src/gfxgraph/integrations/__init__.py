"""Graphs for other libraries: a module for each, imported on first use."""
