"""Exact metrics of predictions, in NumPy."""
