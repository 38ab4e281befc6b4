"""Data that are drawn."""
