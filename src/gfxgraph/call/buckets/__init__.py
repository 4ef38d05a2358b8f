"""Any size from the graphs of a few."""
