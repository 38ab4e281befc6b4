"""The dense layers."""
