"""What runs inside Triton, and in its place when an export is proved."""
