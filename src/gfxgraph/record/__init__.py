"""What one run of a function does to the world outside it."""
