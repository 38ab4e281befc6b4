"""The HTML page of one run or of several: its sections, plots and tables."""
