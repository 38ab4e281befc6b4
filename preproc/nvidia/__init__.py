"""Reading of NVIDIA's checkpoints."""
