"""NVIDIA's checkpoints."""
