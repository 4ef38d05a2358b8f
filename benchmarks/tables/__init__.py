"""The pages and figures that are made of ``benchmarks/results``, a module a page.

Each has the path of its page, ``PAGE``, and ``made()``, which gives its text as of now.
``PYTHONPATH=src python3 -m benchmarks.tables [NAME ...]`` writes them.
"""
