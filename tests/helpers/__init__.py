"""What several files of tests need; each module says what for."""
