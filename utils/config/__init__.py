"""The options of a run: their words, units, defaults and bounds, and how a command line becomes them."""
