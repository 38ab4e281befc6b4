"""Tests of `python -m report`: its arguments, folders of checkpoints, one line for each error, nothing half-written."""

import html
import json
import os
import shutil
from pathlib import Path

import pytest

from report.command import main
from report.log.locate import find
from report.log.thinning import Point
from report.page.plots import thin
from tests.helpers.commands import ROOT, run, run_here
from tests.helpers.errors import refused
from tests.report.logs import about, evaluation, line, run_lines, training, write
from utils.checkpoint import manifest
from utils.errors import UserError


def checkpoint(folder: Path, log: dict | None) -> Path:
    """Write a folder of checkpoints with one step, without its arrays."""
    step = folder / "step-00000010"
    step.mkdir(parents=True)
    manifest.write(step, {"step": 10, "arrays": {}, **({"log": log} if log is not None else {})})
    (folder / "latest").write_text("step-00000010\n")
    return folder


def made(folder: Path, *words: object) -> str:
    """Make a report and return the page."""
    target = folder / "page.html"
    assert main([*map(str, words), "-o", str(target)]) == 0
    return target.read_text()


@pytest.mark.parametrize("named", [".", "step-00000010", "latest"])
def test_a_checkpoint_names_its_log(tmp_path, named):
    log = write(tmp_path / "log.json", run_lines())
    folder = checkpoint(tmp_path / "models", {"path": str(log), "run": "00112233445566aa"})
    (span,) = find(str(folder / named))
    assert span.path == log and span.identity == "00112233445566aa"


def test_a_renamed_log_is_found(tmp_path):
    """A later run took the name; the checkpoint's run is in the numbered file."""
    write(tmp_path / "log.1.json", run_lines())
    write(tmp_path / "log.2.json", run_lines(identity="bb" * 8))
    log = write(tmp_path / "log.json", run_lines(identity="ff" * 8))
    folder = checkpoint(tmp_path / "models", {"path": str(log), "run": "bb" * 8})
    (span,) = find(str(folder))
    assert span.path == tmp_path / "log.2.json"


def test_a_moved_folder_finds_the_log_beside_it(tmp_path):
    folder = checkpoint(tmp_path / "a" / "models", {"path": str(tmp_path / "a" / "models" / "log.json"), "run": "00112233445566aa"})
    write(folder / "log.json", run_lines())
    shutil.move(tmp_path / "a", tmp_path / "b")
    (span,) = find(str(tmp_path / "b" / "models"))
    assert span.path == tmp_path / "b" / "models" / "log.json"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            {"path": "/nowhere/log.json", "run": "00112233445566aa"},
            "is not there, nor a renamed one with its run 00112233445566aa; give the log file",
        ),
        ({"path": None, "run": "00112233445566aa"}, "wrote no log (--log_path was empty)"),
        (None, "its manifest names no log, as those of older versions; give the log file itself"),
        ([1], "its manifest names no log"),
    ],
)
def test_a_checkpoint_without_a_log_is_one_line(tmp_path, log, said):
    with refused(said):
        find(str(checkpoint(tmp_path / "models", log)))


def test_errors_are_one_line_and_nothing_is_written(tmp_path):
    log = write(tmp_path / "log.json", run_lines())
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.json").touch()
    target = tmp_path / "page.html"
    for words, said in (
        ([], "no run is given; expected a log (dlrm_tf_log.json) or a folder of checkpoints"),
        ([tmp_path / "none.json"], "none.json: not found; expected a log"),
        ([tmp_path / "empty"], "holds neither a complete checkpoint nor dlrm_tf_log.json"),
        ([tmp_path / "empty.json"], "holds no line of a log"),
        (["/dev/null"], "/dev/null: not a regular file; expected a log, which is read twice"),
        ([log, "--json", "a.json"], "--json belongs to --compare OLD NEW"),
        ([log, "-o", "/dev/full"], "--output /dev/full: No space left on device"),
        ([log, "--by", "user"], "--by user needs --predictions and --dataset_path"),
        ([log, "--predictions", "a", "--predictions", "b"], "--predictions is given 2 times for 1 run"),
        ([log, "--predictions", tmp_path / "none.parquet", "--dataset_path", tmp_path, "--by", "user"], "none.parquet: no such file"),
        ([log, "--dataset_path", tmp_path / "none"], "none"),
        ([log, "--otput", "a"], "unknown flag --otput; did you mean --output?"),
    ):
        result = run_here("-m", "report", "-o", target, *words)
        assert result.returncode == 1 and said in result.stderr and result.stderr.count("\n") == 1 and result.stderr.startswith("report: error: "), (
            result
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "empty.json", "log.json"]


def test_the_output_is_checked_before_anything_is_read(tmp_path):
    log = write(tmp_path / "log.json", run_lines())
    for output, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "page.html", "does not exist; make it first"),
        (log, "is one of the runs' logs"),
    ):
        with pytest.raises(UserError, match=said):
            main([str(log), "-o", str(output)])
    assert log.read_text() == "".join(run_lines())


def test_replaces_a_page_at_once_and_writes_to_a_pipe(tmp_path):
    log = write(tmp_path / "log.json", run_lines())
    page = made(tmp_path, log)
    assert page == made(tmp_path, log) and sorted(path.name for path in tmp_path.iterdir()) == ["log.json", "page.html"]
    result = run("-m", "report", log, "-o", "/dev/stdout")
    assert result.returncode == 0 and page in result.stdout
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o666 & ~(mask := os.umask(0)) and os.umask(mask) == 0


def test_needs_no_tensorflow(tmp_path):
    log = write(tmp_path / "log.json", run_lines())
    code = "import sys; from report.command import main; main(sys.argv[1:]); assert 'tensorflow' not in sys.modules"
    assert run("-c", code, log, "-o", tmp_path / "page.html").returncode == 0


def test_a_long_run_fits_a_page_and_keeps_its_extremes(tmp_path):
    """All training curves of 12,000 lines: below 1.5 MB for a run, the lowest and highest loss among the points. Below 4 MB for ten of 7,900."""
    text = [line("RUN", about(), 1.0)]
    for step in range(1, 12_001):
        loss = {2_345: 99.0, 10_456: -99.0}.get(step, (step * 7919 % 1000) / 1009)
        text.append(line([0, step], training(step, loss=loss, samples_per_s=9000 + (step * 7907 % 1000) / 997), 1.0 + step))
    write(tmp_path / "log.json", text)
    page = made(tmp_path, tmp_path / "log.json")
    assert len(page.encode()) < 1_500_000
    inside = json.loads(page.split('id="plots-data">')[1].split("</script>")[0])
    (loss,) = [plot for plot in inside["plots"] if plot["name"] == "loss"]
    assert {max(loss["series"][0]["v"]), min(loss["series"][0]["v"])} == {99.0, -99.0} and len(loss["series"][0]["v"]) > 200
    for number in range(10):  # 7,900 lines keep as many points as 12,000
        (tmp_path / f"{number}.json").write_text("".join(text[:7_901]).replace("00112233445566aa", f"{number:016x}"))
    assert len(made(tmp_path, *(tmp_path / f"{number}.json" for number in range(10))).encode()) < 4_000_000


def test_thinning_keeps_extremes():
    points = [Point(step, step, None, float(step == 77)) for step in range(1000)]
    assert max(point.value for point in thin(points, 60)) == 1.0 and len(thin(points, 60)) <= 61 and thin(points, 1000) == points


def test_evaluations_and_importance_of_a_run_join_its_report(tmp_path):
    trained = [one for one in run_lines() if '"IMPORTANCE"' not in one and '"final": true' not in one]
    log = write(tmp_path / "log.json", trained)
    of_eval = [
        line("RUN", about(identity="cc" * 8, mode="eval", restored_run="00112233445566aa"), 1.0),
        line("EVALUATION", evaluation("test", 100, True), 2.0),
    ]
    evaluated = write(tmp_path / "eval.json", of_eval)
    explained = [
        line("RUN", about(identity="dd" * 8, mode="explain", restored_run="00112233445566aa"), 1.0),
        *(one for one in run_lines() if '"IMPORTANCE"' in one),
    ]
    page = made(tmp_path, log, evaluated, write(tmp_path / "explain.json", explained))
    assert "/log.json</h1>" in page
    assert 'data-plot="roc"' in page and 'data-plot="importance-auc-lost"' in page


def test_the_library_is_the_released_file():
    """The digests that the documentation gives are those of the vendored files."""
    from hashlib import sha256

    text = (ROOT / "docs" / "report.md").read_text()
    files = [*(ROOT / "report" / "assets" / "uplot").iterdir(), ROOT / "tests" / "report" / "assets" / "axe.min.js"]
    for file in files:
        if file.suffix in (".js", ".css"):
            assert sha256(file.read_bytes()).hexdigest() in text, file


def test_commands_of_a_run_on_records_name_their_patterns(tmp_path):
    lines = "".join(run_lines()).replace('"/data/clicks"', '"/data/t* /data/e*"')
    given = '"train_data_pattern": ["/data/t*"], "eval_data_pattern": ["/data/e*"], "dataset_path": null'
    log = write(tmp_path / "log.json", [lines.replace('"dataset_path": "/data/t* /data/e*"', given)])
    page = html.unescape(made(tmp_path, log))
    assert "dlrm.py --dataset_type tfrecord --train_data_pattern '/data/t*' --eval_data_pattern '/data/e*' " in page
    assert "--dataset_path DATASET" in page and "--dataset_path '/data" not in page  # rows by value need a dataset's folder
