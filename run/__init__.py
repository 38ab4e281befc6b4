"""Execution of a command: preparation, then one of the modes."""
