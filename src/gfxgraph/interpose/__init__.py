"""What stands between the user's code and what it calls."""
