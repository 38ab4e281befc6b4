"""The dense layers of the models."""
