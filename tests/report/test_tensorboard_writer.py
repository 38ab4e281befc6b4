"""TensorBoard's event files, written from lines of a log and read by TensorFlow."""

import errno
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from report.tensorboard import __main__ as tensorboard
from report.tensorboard.events import EventFile, event_files
from report.tensorboard.writer import opened
from tests.helpers.commands import do
from tests.helpers.commands import run as run_child
from tests.report.event_files import events_of, scalars_of
from utils.errors import UserError
from utils.logging import RunLog
from utils.metrics.summary import entry, evaluate_in_full

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"
FLAGS = {"learning_rate": 0.1, "batch_size": 8, "top_mlp_dims": [16, 1], "amp": False, "embedding_dim": None, "save_checkpoint_path": "c"}
ABOUT = {"id": RUN, "program": "dlrm.py", "mode": "train", "model": "dlrm", "workers": 2, "step_form": "epoch,step", "resumed_step": None}


def training(board, steps, factor=1.0):
    for step in steps:
        board.line([0, step], {"loss": factor / step, "samples_per_s": 1.0, "learning_rate": 0.1})


def described(folder, run=RUN, resumed=None):
    board = opened(str(folder), run, resumed)
    board.line("PARAMETER", FLAGS)
    board.line("RUN", ABOUT | {"id": run, "resumed_step": resumed})
    return board


def float32(value):
    return float(np.float32(value))


def test_scalars_are_on_the_disk_after_each_line(tmp_path):
    board = described(tmp_path / "new/board")
    for step in (10, 20):
        training(board, [step])
        assert scalars_of(board.folder)["train/loss"][-1] == (step, float32(1 / step))
    board.close()
    assert list(scalars_of(board.folder)) == ["train/loss", "speed/samples_per_s", "learning_rate/dense"]


def test_the_time_of_a_point_is_that_of_its_line(tmp_path):
    board = described(tmp_path)
    before = time.time()
    training(board, [1])
    board.line([0, 2], {"loss": 1.0, "samples_per_s": 1.0}, wall_time=123.5)
    times = [event.wall_time for event in events_of(board.path) if event.summary.value and event.step]
    assert before <= times[0] <= time.time() and times[1] == 123.5
    board.close()


def test_resumed_run_replaces_later_steps(tmp_path):
    board = described(tmp_path)
    training(board, [10, 20, 30, 40])
    board.close()
    board = described(tmp_path, resumed=20)
    assert board.folder == tmp_path and len(event_files(tmp_path)) == 2
    training(board, [30], factor=2)
    board.close()
    assert scalars_of(tmp_path)["train/loss"] == [(10, float32(1 / 10)), (20, float32(1 / 20)), (30, float32(2 / 30))]


def test_files_are_read_in_the_order_in_which_they_were_made(tmp_path):
    """TensorBoard sorts names; many processes of a run may begin within a second."""
    paths = []
    for _ in range(12):
        board = EventFile(tmp_path, RUN)
        paths.append(board.path)
        board.close()
    assert event_files(tmp_path) == paths


def test_another_run_gets_a_folder_of_its_own_and_finds_it_again(tmp_path):
    for run in (RUN, OTHER):
        board = described(tmp_path, run)
        training(board, [10])
        board.close()
    assert board.folder.parent == tmp_path and board.folder.name.endswith(f"-{OTHER}")
    own, others = described(tmp_path, RUN, resumed=10), described(tmp_path, OTHER, resumed=10)
    assert own.folder == tmp_path and others.folder == board.folder
    again = described(board.folder, OTHER, resumed=10)
    assert again.folder == board.folder
    for one in (own, others, again):
        training(one, [20])
        one.close()
    assert [step for step, _ in scalars_of(tmp_path)["train/loss"]] == [10, 20]


def test_files_of_others_are_not_mixed_with_a_runs(tmp_path):
    (tmp_path / "events.out.tfevents.1700000000.host.1.0.v2").write_bytes(b"")
    (tmp_path / "events.out.tfevents.99.host.profile-empty").write_bytes(b"")
    board = described(tmp_path)
    board.close()
    assert board.folder.parent == tmp_path
    (tmp_path / "events.out.tfevents.1700000000.host.1.0.v2").unlink()
    board = described(tmp_path, OTHER)
    board.close()
    assert board.folder == tmp_path, "the profiler's file belongs to no run"


def test_run_that_ends_before_its_first_figures_leaves_no_file(tmp_path):
    board = described(tmp_path)
    board.line("FAULT", {"epoch": 0, "step": 0, "message": "out of memory", "stopped": False})
    board.close()
    board.close()
    assert event_files(tmp_path) == []
    board = described(tmp_path, OTHER)
    board.close()
    assert board.folder == tmp_path


def test_figures_of_two_lines_are_one_point(tmp_path):
    """An evaluation's figures stand in a line of their own and in its summary; the last line repeats those of the final test."""
    board = described(tmp_path)
    rng = np.random.default_rng(1)
    summary = entry("test", evaluate_in_full(rng.normal(size=500).astype(np.float32), rng.random(500) < 0.3), (0, 10))
    board.line([0, 10], {"auc": summary["auc"], "test_loss": summary["log_loss"], "samples": 500})
    board.line("EVALUATION", summary)
    training(board, [20])
    board.line("EVALUATION", summary | {"final": True})
    board.line([], {"auc": summary["auc"], "validation_loss": summary["log_loss"], "tested_step": 10})
    board.close()
    points = scalars_of(tmp_path)
    assert points["test/auc"] == points["final/auc"] == [(10, float32(summary["auc"]))]
    assert points["test/calibration"] == [(10, float32(summary["calibration"]))]


def summaries_of(path, tag):
    return [value for event in events_of(path) for value in event.summary.value if value.tag == tag]


def test_curve_of_precision_and_recall_by_hand(tmp_path):
    """Logits from 0 to 4 in 4 bins: at the edges 0, 1, 2, 3 and 4 these samples are above."""
    board = described(tmp_path)
    histogram = {"low": 0.0, "high": 4.0, "negative": [5, 3, 2, 0], "positive": [0, 1, 1, 2]}
    board.line("EVALUATION", {"split": "test", "step": 10, "histogram": histogram})
    (curve,) = summaries_of(board.path, "test/precision_and_recall")
    tp, fp, tn, fn, precision, recall = np.reshape(curve.tensor.float_val, (6, 5))
    assert tp.tolist() == [4, 4, 3, 2, 0] and fp.tolist() == [10, 5, 2, 0, 0]
    assert tn.tolist() == [0, 5, 8, 10, 10] and fn.tolist() == [0, 0, 1, 2, 4]
    assert_allclose(precision, [4 / 14, 4 / 9, 3 / 5, 1, 0], rtol=1e-6)
    assert_allclose(recall, [1, 1, 3 / 4, 1 / 2, 0], rtol=1e-6)
    assert curve.metadata.summary_description == "Threshold t is the logit 0 + t x 4: the edges of 4 bins."
    board.close()
    assert event_files(tmp_path) == [], "no scalars: see the test of runs that end early"


def test_histograms_of_scores_and_deciles(tmp_path):
    board = described(tmp_path)
    data = {
        "split": "valid",
        "step": 10,
        "auc": 0.7,
        "histogram": {"low": -1.0, "high": 1.0, "negative": [3, 1], "positive": [0, 2]},
        "deciles": [[2, 0, 0.2, 0.05, 0.1], [0, 0, 0.0, None, None], [2, 1, 1.0, 0.4, 0.6]],
    }
    board.line("EVALUATION", data)
    (negatives,) = summaries_of(board.path, "valid/logits_of_negatives")
    assert list(negatives.histo.bucket) == [3, 1] and list(negatives.histo.bucket_limit) == [0, 1] and negatives.histo.min == -1
    (clicks,) = summaries_of(board.path, "valid/deciles/clicks")
    (predicted,) = summaries_of(board.path, "valid/deciles/predicted_clicks")
    for found, counts in ((clicks, [0, 1]), (predicted, [0.2, 1.0])):
        assert list(found.histo.bucket) == counts and list(found.histo.bucket_limit) == [0.1, 0.6] and found.histo.min == 0.05
    board.close()


def test_text_of_a_run_shows_names_as_they_stand(tmp_path):
    board = described(tmp_path)
    board.line("RUN", ABOUT | {"numerical": ["<script>alert(1)</script>", "a|b", "new\nline"], "tables": [{"name": "`x`"}] * 100})
    text = summaries_of(board.path, "run/text_summary")[-1].tensor.string_val[0].decode()
    (row,) = (line for line in text.splitlines() if line.startswith("| numerical |"))
    assert row == r"| numerical | \<script\>alert\(1\)\<\/script\>, a\|b, new line |".replace(r"\/", "/")
    assert "… \\(100 in all\\)" in text
    board.close()


@pytest.mark.parametrize("kind", ["file", "under a file", "url", "read-only"])
def test_unusable_folder_is_one_line(tmp_path, kind, monkeypatch):
    (tmp_path / "file").write_text("")
    paths = {"file": tmp_path / "file", "under a file": tmp_path / "file/board", "url": "s3://bucket/board", "read-only": tmp_path / "ro"}
    expected = {"file": "exists and is no folder; expected", "under a file": "Not a directory", "url": "is a URL; expected a local folder"}
    if kind == "read-only":  # permissions do not bind root

        def refuse(path, *_, **__):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"^--tensorboard_path ") as error:
        opened(str(paths[kind]), RUN, None)
    assert expected.get(kind, "Permission denied; expected a folder that can be written to") in str(error.value)
    assert event_files(tmp_path) == []


LIMITED = """
import resource, signal, sys
from pathlib import Path
from report.tensorboard.writer import opened
from utils.logging import RunLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
board = opened(sys.argv[1], "0" * 16, None)
said = []
log = RunLog("", {}, warn=said.append, observers=[board])
size = board.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, size + 300))
for step in range(1, 100):
    log.log((0, step), {"loss": 1.0, "samples_per_s": 1.0})
log.close()
print("\\n".join(said))
"""


def test_full_disk_before_training_is_one_line_and_leaves_no_file(tmp_path, monkeypatch):
    def full(self, event):
        self._file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    monkeypatch.setattr(EventFile, "add", full)
    with pytest.raises(UserError, match="board: No space left on device; expected a folder that can be written to"):
        opened(str(tmp_path / "board"), RUN, None)
    assert event_files(tmp_path / "board") == []


def test_full_disk_while_training_is_one_warning_and_the_run_goes_on(tmp_path):
    """A limit on the size of files acts as a full disk does: a write fails in the middle."""
    result = run_child("-c", LIMITED, tmp_path)
    (line,) = result.stdout.splitlines()
    assert result.returncode == 0 and line.endswith("File too large; nothing more is written there, the run continues"), result.stderr
    (path,) = event_files(tmp_path)
    assert str(path) in line


KILLED = """
import os, signal, sys
from report.tensorboard.writer import opened
board = opened(sys.argv[1], "0" * 16, None)
for step in range(1, 51):
    board.line([0, step], {"loss": 1.0, "samples_per_s": 1.0})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_has_written_all_its_lines(tmp_path):
    result = run_child("-c", KILLED, tmp_path)
    assert result.returncode == -signal.SIGKILL
    assert [step for step, _ in scalars_of(tmp_path)["train/loss"]] == list(range(1, 51))


def test_log_without_a_file_still_tells_its_observers(tmp_path):
    board = opened(str(tmp_path), RUN, None)
    log = RunLog("", FLAGS, observers=[board])
    log.log((0, 5), {"loss": float("nan"), "samples_per_s": 2.0})
    log.close()
    assert scalars_of(tmp_path) == {"speed/samples_per_s": [(5, 2.0)]}


def line(step, data, seconds=100.0):
    return "DLLL " + json.dumps({"timestamp": f"{seconds}", "type": "LOG", "step": step, "data": data}) + "\n"


def steps_of(numbers, factor=1.0):
    return "".join(line([0, step], {"loss": factor / step, "samples_per_s": 1.0}) for step in numbers)


def test_conversion_of_a_log_with_resumes_and_a_cut_line(tmp_path):
    log = tmp_path / "log.json"
    evaluation = line([0, 30], {"auc": 0.5, "test_loss": 0.7})
    start = line("PARAMETER", FLAGS) + line("RUN", ABOUT)
    resumed = line("PARAMETER", FLAGS) + line("RUN", ABOUT | {"resumed_step": 20}, 200.0)
    log.write_text(start + steps_of([10, 20, 30, 40]) + evaluation + line([], {"auc": 0.1}) + 'DLLL {"timest\n' + resumed + steps_of([30], 2.0))
    assert do(tensorboard, log, "-o", tmp_path / "board") == 0
    points = scalars_of(tmp_path / "board")
    assert points["train/loss"] == [(10, float32(1 / 10)), (20, float32(1 / 20)), (30, float32(2 / 30))]
    assert "test/auc" not in points and "final/auc" not in points, "steps after 20 were trained again"


def test_conversion_of_two_runs_in_one_file(tmp_path, capsys):
    log, board = tmp_path / "log.json", tmp_path / "board"
    log.write_text("".join(line("PARAMETER", FLAGS, began) + steps_of([10, 20]) for began in (100.0, 5000.0)))
    assert do(tensorboard, log, log, "-o", board) == 0
    first, second = (text.rpartition(" is in ")[2] for text in capsys.readouterr().out.splitlines())
    assert first == str(board) and Path(second).parent == board
    assert scalars_of(board) == scalars_of(Path(second)) and len(scalars_of(board)["train/loss"]) == 2
    before = sorted(board.rglob("*"))
    with pytest.raises(UserError, match=r"holds run [0-9a-f]{16} already; remove it, or give another folder to -o"):
        do(tensorboard, log, "-o", board)
    assert sorted(board.rglob("*")) == before


def test_failed_conversion_leaves_nothing(tmp_path, monkeypatch):
    log = tmp_path / "log.json"
    log.write_text(line("PARAMETER", FLAGS) + steps_of([10, 20]))

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "board")

    monkeypatch.setattr(EventFile, "scalars", fail)
    with pytest.raises(UserError, match="No space left on device"):
        do(tensorboard, log, "-o", tmp_path / "board")
    assert [path.name for path in tmp_path.rglob("*")] == ["log.json"]
