"""Checks this machine, recommends variables, and starts programs with them."""
