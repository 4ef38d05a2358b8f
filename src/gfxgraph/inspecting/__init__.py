"""What is in a graph: its nodes, and the lines that made them."""
