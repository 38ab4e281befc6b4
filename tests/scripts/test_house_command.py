"""Tests of the command line of scripts/house.py."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def house(*words):
    return subprocess.run([sys.executable, ROOT / "scripts/house.py", *map(str, words)], capture_output=True, text=True, timeout=240, check=False)


def test_help_lists_the_flags():
    result = house("--help")
    assert result.returncode == 0 and result.stdout.startswith("usage: house.py") and "--journeys" in result.stdout


@pytest.mark.parametrize("words", [("nothing",), ("--journey",), ("--all",), (ROOT, "more")])
def test_unknown_words_are_errors(words):
    result = house(*words)
    assert result.returncode != 0 and result.stdout == "" and "house.py: error: " in result.stderr and "Traceback" not in result.stderr


def test_a_folder_without_the_project_is_an_error(tmp_path):
    result = house(tmp_path)
    assert (result.returncode, result.stderr) == (1, f"house.py: error: {tmp_path}: holds none of the project; expected the project's folder\n")


def test_another_clone_is_checked(tmp_path):
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils/one.py").write_text('"""What this is."""\n')
    result = house(tmp_path)
    assert result.returncode == 1 and "utils/one.py:1: the docstring opens with What" in result.stderr
