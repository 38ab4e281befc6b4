"""Work on a Spark cluster."""
