"""Helpers that tests of several folders share: a file a subject."""
