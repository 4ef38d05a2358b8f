"""What is wrong on this machine, what to set, and starting a program with it set."""
