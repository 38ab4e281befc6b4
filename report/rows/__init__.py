"""Statistics of rows: of predictions, and of a dataset's splits."""
