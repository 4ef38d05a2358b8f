"""A simulated machine with a GPU, on which ``check`` runs functions."""
