"""Many graphs behind one callable."""
