"""Checks of the GPU path that need no GPU, and the measurements for the first run on one."""
