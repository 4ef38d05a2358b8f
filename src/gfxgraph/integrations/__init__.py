"""Other libraries through graphs; a module for each, imported only when it is asked for."""
