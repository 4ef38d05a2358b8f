"""Stands between the user's code and the libraries that it calls."""
