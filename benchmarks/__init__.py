"""What gfxgraph costs and gains, and what graphs do on real machines.

``runs`` measures, a module a subject (``PYTHONPATH=src python3 -m benchmarks.runs.models``),
``results`` holds what was measured, ``tables`` makes the pages of it, ``lib`` is shared.
"""
