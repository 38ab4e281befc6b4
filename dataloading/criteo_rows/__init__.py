"""Rows of Criteo's form in the files of other applications: a label, 13 numerical values and 26 ids."""
