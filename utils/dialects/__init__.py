"""Command lines of the systems that this application replaces."""
