"""The entry of `python -m report`: reports of runs, and with `--compare` comparisons of benchmarks."""

import sys

from utils.commands import run_command


def main() -> int | None:
    """Run the command that the words name."""
    if any(word == "--compare" or word.startswith("--compare=") for word in sys.argv[1:]):
        from report.compare import main as compare

        return compare()
    from report.command import main as report

    return report()


if __name__ == "__main__":
    sys.exit(run_command(main, "report"))
