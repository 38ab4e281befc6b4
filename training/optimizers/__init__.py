"""The optimizers of dense weights and of embedding tables."""
