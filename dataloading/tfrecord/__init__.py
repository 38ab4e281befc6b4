"""Datasets in TFRecords."""
