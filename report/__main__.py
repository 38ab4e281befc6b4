"""Reports on runs, and with `--compare` comparisons of benchmarks.

python -m report dlrm_tf_log.json -o report.html
python -m report --compare old.json new.json
"""

import sys

from utils.commands import run_command


def main() -> int:
    """Run the command that the words name."""
    if any(word == "--compare" or word.startswith("--compare=") for word in sys.argv[1:]):
        from report.compare import main as command
    else:
        from report.command import main as command
    return command()


if __name__ == "__main__":
    sys.exit(run_command(main, "report"))
