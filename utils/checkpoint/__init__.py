"""Checkpoints on disk: writing, reading, the folder of steps, the manifest."""
