"""The measurements, each a program: ``PYTHONPATH=src python3 -m benchmarks.runs.NAME --help``."""
