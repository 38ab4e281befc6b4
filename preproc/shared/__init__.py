"""Modules that several preprocessing commands share."""
