"""Wide & Deep by the name that NVIDIA's commands call it: see wide_and_deep.py."""

import sys

import wide_and_deep
from utils.commands import run_command

sys.exit(run_command(wide_and_deep.main, "main.py"))
