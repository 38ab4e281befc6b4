"""`scripts/figures` compares the output quoted below a command with the output the command prints now."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/figures.py"


def figures(document, *flags, sample=None):
    environment = {name: value for name, value in os.environ.items() if name != "CRITEO_SAMPLE_DIR"}
    environment |= {"CRITEO_SAMPLE_DIR": str(sample)} if sample else {}
    command = [sys.executable, str(SCRIPT), *flags, str(document)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=240)


@pytest.fixture
def document(tmp_path):
    def write(*blocks):
        path = tmp_path / "page.md"
        path.write_text("Words.\n" + "".join(f"\n```console\n{block}\n```\n\nMore words.\n" for block in blocks))
        return path

    return write


@pytest.mark.parametrize(
    ("block", "code", "said"),
    [
        ("$ echo AUC 0.75, 1,000 samples\nAUC 0.75, 1,000 samples", 0, "unchanged"),
        ("$ echo AUC 0.75, 9 samples/s in 3.5 s\nAUC 0.75, 11 samples/s in 7.25 s", 0, "unchanged"),  # rates and times depend on the machine
        ("$ echo AUC 0.75012\nAUC 0.75010", 0, "last digits: 0.75010 -> 0.75012 in: AUC 0.75012"),
        ("$ echo AUC 0.75\nAUC 0.76", 1, "changed: 0.76 -> 0.75 in: AUC 0.75"),
        ("$ echo other words\nAUC 0.76", 1, "+ other words"),
        ("$ echo one; exit 3\none", 1, "ended with 3"),
        ("$ echo one \\\n    two\none two", 0, "unchanged"),
        ("$ cat <<'END'\nhere\nEND\nhere", 0, "unchanged"),
        ("$ echo first\nfirst\n$ ls README.md\nREADME.md", 0, "ls README.md: unchanged"),
    ],
)
def test_changed_output_is_reported(document, block, code, said):
    result = figures(document(block))
    assert result.returncode == code and said in result.stdout, result.stdout + result.stderr


def test_update_rewrites_only_changed_output(document):
    path = document("$ echo 1\n2\n3", "$ false\nkept", "$ seq 2")
    before = path.read_text()
    assert figures(path, "--update").returncode == 1
    assert path.read_text() == before.replace("$ echo 1\n2\n3", "$ echo 1\n1").replace("$ seq 2", "$ seq 2\n1\n2")
    assert figures(path).stdout.count("unchanged") == 2


def test_blocks_that_need_the_criteo_sample_are_left_out_without_it(document, tmp_path):
    path = document("$ wc -l day_0.tsv\n2 day_0.tsv")
    assert "skipped: CRITEO_SAMPLE_DIR is not set" in figures(path).stdout
    for name in ("day_0.tsv", "day_1.tsv"):
        (tmp_path / name).write_text("a\nb\n")
    assert "unchanged" in figures(path, sample=tmp_path).stdout
