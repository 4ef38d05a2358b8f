"""Compares what a candidate gives with eager execution, and times both."""
