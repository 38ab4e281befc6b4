"""Any table: CSV, JSON lines, Parquet, Arrow."""
