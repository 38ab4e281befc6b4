"""The options of a run: their names, units, defaults and bounds, and their conversion from a command line."""
