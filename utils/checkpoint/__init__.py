"""Checkpoints on the disk: writing, reading, the folder of steps, the manifest."""
