"""Commands of the systems that this one succeeds."""
