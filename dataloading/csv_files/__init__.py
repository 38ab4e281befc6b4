"""Datasets of NVIDIA's in CSV files."""
