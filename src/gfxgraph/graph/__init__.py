"""One graph: the graph class, safe capture, the state around it."""
