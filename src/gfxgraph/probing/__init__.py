"""``parity``: which capabilities of CUDA graphs a machine has, proved by running each.

``capabilities`` has the rows and what is read of other machines, ``probes/`` what runs, ``child``
where it runs, ``report`` and ``view`` what is shown.
"""
