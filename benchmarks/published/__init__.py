"""Test AUC on a published split, beside the literature and well-kept peers."""
