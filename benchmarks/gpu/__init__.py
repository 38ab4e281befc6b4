"""What can be said of the GPU path without a GPU, and what to run on the first one."""
