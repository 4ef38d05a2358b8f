"""What graphs gain for a function, measured on this machine."""
