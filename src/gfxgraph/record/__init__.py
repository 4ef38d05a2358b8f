"""Records one run of a function: its operations, its hazards, its effects outside."""
