"""Six experiments on graphs: each asks one question, and answers it for a function."""
