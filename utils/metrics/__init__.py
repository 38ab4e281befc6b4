"""Metrics of predictions, exact, in NumPy."""
