"""Code that runs inside Triton, and in a stand-in for Triton when an export is proved."""
