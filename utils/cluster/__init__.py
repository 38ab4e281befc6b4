"""Processes on one or more hosts: their start, agreement, supervision and end."""
