"""What several measurements need."""
