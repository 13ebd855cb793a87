"""The parts of the soak: each goes on where it stopped, and its counts add up over runs."""
