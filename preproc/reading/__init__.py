"""Raw files, read block by block."""
