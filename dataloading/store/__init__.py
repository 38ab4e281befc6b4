"""Datasets in object stores."""
