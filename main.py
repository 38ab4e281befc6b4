"""Wide & Deep under the file name that NVIDIA's commands use: see wide_and_deep.py."""

import sys

import wide_and_deep
from utils.commands import run_command

NAME = "main.py"

sys.exit(run_command(lambda: wide_and_deep.main(NAME), NAME))
