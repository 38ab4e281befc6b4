"""What turns raw values into a model's inputs; used by preprocessing and wherever raw values are scored."""
