"""Preprocessing of tables of any shape, from CSV, JSON lines, Parquet and Arrow files."""
