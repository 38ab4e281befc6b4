"""Embedding tables, where they are placed, and the lookup and update over all workers."""
