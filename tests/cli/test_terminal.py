"""Runs on a terminal: one live line, which fits its width, and nothing that scrolls but evaluations, checkpoints and the last lines."""

import re
import shlex
import sys

import pytest
from runs import ROOT, TRAIN, read_log
from terminal import CLEAR, Terminal

from utils.checkpoint.reading import Checkpoint


@pytest.fixture
def words(dataset, tmp_path):
    """Return the words of a run of 2,400 steps with four evaluations and two checkpoints."""
    flags = ("--epochs", 150, "--print_freq", 1, "--test_freq", 600, "--checkpoint_every_steps", 1500, "--save_checkpoint_path", tmp_path / "c")
    return (sys.executable, ROOT / "dlrm.py", "--dataset_path", dataset, *TRAIN, *flags)


@pytest.mark.parametrize("columns", [40, 200])
def test_one_calm_line_in_the_terminals_width(words, tmp_path, columns):
    terminal = Terminal(words, columns, tmp_path)
    assert terminal.code == 0, terminal.text
    assert all(len(text) < columns for text in terminal.drawn)
    live = [text for text in terminal.drawn if "/2,400" in text]
    assert len(live) > 3 and all(re.search(r"\d+/2,400", text) for text in live)
    assert any("left" in text for text in live) and any("loss 0." in text for text in live)
    if columns == 200:
        expected = r"training  [\d,]+/2,400  \d+%  loss 0\.\d{5}  AUC 0\.\d{5}  [\d,]+ samples/s  0:0\d:\d\d left"
        assert any(re.fullmatch(expected, text) for text in live), live
    kinds = (
        "train on 1 worker",
        "test AUC ",
        "checkpoint written",
        "trained on",
        "data:",
        "model:",
        "time:",
        "test:",
        "checkpoint:",
        "log:",
        "next:",
    )
    stay = [line for line in terminal.lines if line]
    assert all(line.startswith(kinds) for line in stay), stay
    assert len(stay) == 1 + 4 + 2 + 8 and len(read_log(tmp_path / "dlrm_tf_log.json")) > 2400  # the log has all lines


def test_the_line_follows_the_terminals_width(words, tmp_path):
    narrow = []

    def seen(terminal, text):
        if not narrow and text.count(" left") > 1:
            terminal.resize(45)
            narrow.append(True)

    terminal = Terminal(words, 150, tmp_path, seen)
    assert terminal.code == 0 and narrow
    wide = [len(text) >= 45 for text in terminal.drawn]
    assert any(wide) and not any(wide[len(wide) // 2 :])


def test_ctrl_c_leaves_a_clean_line_and_a_checkpoint(words, tmp_path):
    pressed = []

    def seen(terminal, text):
        if not pressed and "loss" in text:
            pressed.append(True)
            terminal.press(b"\x03")

    terminal = Terminal(words, 80, tmp_path, seen)
    assert terminal.code == 130, terminal.text
    step = Checkpoint(tmp_path / "c").step
    last = [line for line in terminal.lines if line][-1]
    assert last == f"dlrm.py: stopped by SIGINT after step {step}, which is saved; to resume, run the same command with --resume auto" or (
        last.startswith("dlrm.py: ") and f"stopped by SIGINT after step {step}, which is saved" in last
    )
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize("ending", ["| cat", "2>&-", "> out.txt"])
def test_redirected_outputs_have_plain_lines(words, tmp_path, ending):
    command = " ".join(map(shlex.quote, map(str, words))) + " --print_freq 600 --max_steps 1200 " + ending
    terminal = Terminal(("bash", "-c", command), 100, tmp_path)
    assert terminal.code == 0, terminal.text
    plain = (tmp_path / "out.txt").read_text() if "out.txt" in ending else terminal.text
    assert plain.count("samples/s, ") == 2 and "step 600/1200: loss" in plain and plain.splitlines()[-1].startswith("next: python -m report")
    assert CLEAR not in plain and "\r" not in plain.replace("\r\n", "\n")
    assert (CLEAR in terminal.text) == ("out.txt" in ending)  # the live line is on the terminal while the lines go to the file


def test_an_error_comes_after_the_live_line_is_gone(words, tmp_path):
    terminal = Terminal((*words, "--learning_rate", "1e30", "--optimizer", "sgd"), 80, tmp_path)
    assert terminal.code == 1
    assert [line for line in terminal.lines if line][-1].startswith("dlrm.py: error: step ")
