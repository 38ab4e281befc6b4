"""Embedding tables, their placement, and their lookup and update across all workers."""
