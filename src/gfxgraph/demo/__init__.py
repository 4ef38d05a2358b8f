"""The demo: search by meaning, with and without graphs."""
