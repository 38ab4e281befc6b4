"""Running of preprocessing on a Spark cluster."""
