"""Encoding of raw values as a model's inputs, for preprocessing and for scoring of raw values."""
