"""``torch.compile``: recommended settings, fixes, what it compiled, and where it breaks."""
