"""Synthetic datasets, drawn from random numbers."""
