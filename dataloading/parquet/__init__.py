"""Datasets in Parquet files, in the form of NVIDIA's Wide & Deep (its current release)."""
