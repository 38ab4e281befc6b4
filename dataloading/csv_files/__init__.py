"""Datasets in CSV files, such as those in NVIDIA's generic form."""
