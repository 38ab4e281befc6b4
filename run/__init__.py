"""What a command does: prepare, then one of the modes."""
