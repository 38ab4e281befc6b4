"""Criteo's click logs."""
