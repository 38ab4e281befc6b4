"""Wide & Deep under the file name that NVIDIA's commands use: see wide_and_deep.py."""

import sys

import wide_and_deep
from utils.commands import run_command

sys.exit(run_command(wide_and_deep.main, "main.py"))
