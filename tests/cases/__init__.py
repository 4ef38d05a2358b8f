"""Functions as people write them, for tests and for a measurement on a GPU."""
