"""What counts values and looks ids up, column by column: Polars here; another engine has the same functions."""
