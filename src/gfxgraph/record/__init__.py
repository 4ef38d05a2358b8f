"""Recordings: the operations, reads, writes and side effects of one run of a function."""
