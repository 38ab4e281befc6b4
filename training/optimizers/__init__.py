"""The optimizers of dense weights and embedding tables."""
