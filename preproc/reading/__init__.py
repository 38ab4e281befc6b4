"""Reading of raw files, block by block."""
