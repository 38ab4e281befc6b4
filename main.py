"""Wide & Deep by the name that NVIDIA's commands call it: see wide_and_deep.py."""

import sys

import wide_and_deep

sys.exit(wide_and_deep.dlrm.run_command(wide_and_deep.main, "main.py"))
