"""TensorBoard's files, from the lines of a log."""
