"""A machine with a GPU where there is none: what `check` runs a function on."""
