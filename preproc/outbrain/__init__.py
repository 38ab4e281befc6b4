"""Outbrain's click prediction."""
