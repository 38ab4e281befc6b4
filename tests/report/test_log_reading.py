"""Tests of the reader of logs: which lines count, over resumes, cut lines, several runs in a file, other programs' logs."""

import json

import pytest

from report.log.lines import head_of, parsed, raw_lines
from report.log.locate import find
from report.log.record import Record, read_record
from report.log.runs import runs_of
from report.page.outcome import outcomes
from tests.report.logs import about, evaluation, line, run_lines, training, write
from utils.errors import UserError


def records(path) -> list[Record]:
    """Read all runs of a log."""
    return [read_record(span, str(span.number)) for span in runs_of(path)]


def losses(record: Record) -> list[tuple[int, float]]:
    """Return steps and losses."""
    return [(point.step, point.value) for point in record.training["loss"].points()]


def test_reads_every_figure_of_a_run(tmp_path):
    (record,) = records(write(tmp_path / "log.json", run_lines()))
    assert losses(record) == [(step, training(step)["loss"]) for step in range(10, 101, 10)]
    assert [point.samples for point in record.training["loss"].points()] == [step * 128 for step in range(10, 101, 10)]
    assert [point.seconds for point in record.training["loss"].points()] == list(range(10, 101, 10))
    assert {point.step: point.value for point in record.metrics["valid", "auc"].points()} == {50: 0.7 + 50 / 1024, 100: 0.7 + 100 / 1024}
    assert record.summaries["test"] == evaluation("test", 100, True, 960) and record.summaries["valid"]["step"] == 100
    assert record.tables["memory_gib"] == [0.5, 0.25] and record.touched["user"].last.value == 0.78125
    assert [event.kind for event in record.events] == ["start", "checkpoint", "checkpoint", "end"]
    assert record.final["map_at_12"] == 0.3125 and record.fault is None and record.cut == 0 and record.last_step == 100
    assert record.seconds == 103


def test_a_resumed_run_drops_the_steps_after_its_checkpoint(tmp_path):
    killed = run_lines(range(10, 81, 10))[:-4]
    again = [line("RUN", about(resumed=50), 2000.0), *(line([0, step], training(step, loss=step / 8), 2000.0 + step) for step in (60, 70, 80, 90))]
    (record,) = records(write(tmp_path / "log.json", [*killed, line("PARAMETER", {"mode": "train"}, 2000.0), *again]))
    found = dict(losses(record))
    assert list(found) == [10, 20, 30, 40, 50, 60, 70, 80, 90] and [found[step] for step in (60, 70, 90)] == [7.5, 8.75, 11.25]
    assert found[50] == training(50)["loss"]
    assert [event.kind for event in record.events] == ["start", "checkpoint", "resume"]
    seconds = [point.seconds for point in record.training["loss"].points()]
    assert seconds == sorted(seconds) and seconds[-1] == 80 + 90  # the pause between the processes does not count


def test_a_resume_from_an_older_checkpoint_drops_lines_of_both_processes(tmp_path):
    parts = [line("RUN", about(), 1.0), *(line([0, step], training(step), step) for step in range(10, 100, 10))]
    parts += [line("RUN", about(resumed=80), 200.0), line([0, 90], training(90, loss=9.0), 201.0)]
    parts += [line("RUN", about(resumed=20), 300.0), line([0, 30], training(30, loss=3.0), 301.0)]
    (record,) = records(write(tmp_path / "log.json", parts))
    assert losses(record) == [(10, training(10)["loss"]), (20, training(20)["loss"]), (30, 3.0)]


def test_one_file_may_hold_several_runs(tmp_path):
    path = write(
        tmp_path / "log.json",
        [*run_lines(), *run_lines(began=5000.0, identity="ff" * 8), *run_lines([10], began=9000.0, identity="ff" * 8, resumed=50)],
    )
    first, second = records(path)
    assert [span.identity for span in runs_of(path)] == ["00112233445566aa", "ff" * 8]
    assert len(losses(first)) == 10 and second.span.stretches[1].resumed_step == 50


@pytest.mark.parametrize(
    ("flags", "runs"), [({}, 2), ({"restore_checkpoint_path": "/models/a"}, 1), ({"resume": "auto"}, 1), ({"resume": "none"}, 2)]
)
def test_older_logs_name_no_run(tmp_path, flags, runs):
    """Logs without lines RUN: a second line of flags is a resume where its flags say so and its first step is later."""
    first = [line("PARAMETER", {"mode": "train"}, 1.0), *(line([0, step], {"loss": 1.0 * step}, step) for step in (10, 20, 30))]
    second = [line("PARAMETER", {"mode": "train", **flags}, 50.0), *(line([0, step], {"loss": 2.0 * step}, 50.0 + step) for step in (25, 35))]
    found = records(write(tmp_path / "log.json", first + second))
    assert len(found) == runs
    if runs == 1:
        assert losses(found[0]) == [(10, 10.0), (20, 20.0), (25, 50.0), (35, 70.0)]


def test_a_restart_from_the_first_step_is_another_run(tmp_path):
    one = [line("PARAMETER", {"resume": "auto"}, 1.0), line([0, 10], {"loss": 1.0}, 2.0)]
    assert len(records(write(tmp_path / "log.json", one + one))) == 2


@pytest.mark.parametrize("cut", range(1, 400, 13))
def test_a_cut_line_loses_only_itself(tmp_path, cut):
    lines = run_lines()
    text = "".join(lines)
    path = tmp_path / "log.json"
    path.write_text(text[:-cut])
    (record,) = records(path)
    assert len(losses(record)) == 10 and record.cut <= 1


def test_a_process_that_writes_behind_a_cut_line_is_read(tmp_path):
    first = "".join(run_lines(range(10, 41, 10))[:6])
    path = tmp_path / "log.json"
    path.write_text(
        first[:-50] + "".join([line("PARAMETER", {}, 60.0), line("RUN", about(resumed=20), 60.0), line([0, 30], training(30, loss=3.0), 61.0)])
    )
    (record,) = records(path)
    assert losses(record) == [(10, training(10)["loss"]), (20, training(20)["loss"]), (30, 3.0)] and record.cut == 1


def test_null_and_not_finite_figures_are_counted(tmp_path):
    lines = [line("RUN", about(), 1.0), line([0, 10], {"loss": None}, 2.0), line([0, 20], {"loss": 0.5}, 3.0)]
    lines.append(line([0, 30], {"loss": float("nan"), "step_time_ms": float("inf")}, 4.0))
    (record,) = records(write(tmp_path / "log.json", lines))
    assert losses(record) == [(20, 0.5)] and record.training["loss"].undefined == 2 and record.training["loss"].undefined_step == 10


def test_the_form_of_wide_and_deep(tmp_path):
    """[step, steps of the run] in training lines, [step] in evaluations, keys of NVIDIA's release."""
    lines = [line("PARAMETER", {}, 1.0)]
    for step in (100, 200, 300):
        lines += [
            line([step, 300], {"binary_accuracy": 0.8, "auc": 0.6, "loss": str(1.0 / step)}, step),
            line([step], {"auc_val": step / 1000, "loss_val": 0.5}, step),
        ]
    lines.append(line([], {"train_throughput": 1000.0, "streaming_map_val": 0.5}, 400.0))
    (record,) = records(write(tmp_path / "log.json", lines))
    assert losses(record) == [(100, 0.01), (200, 0.005), (300, 1.0 / 300)]
    assert [(point.step, point.value) for point in record.metrics["test", "auc"].points()] == [(100, 0.1), (200, 0.2), (300, 0.3)]


def test_single_steps_do_not_change_the_form(tmp_path):
    """Lines [1, step] of --log_steps beside lines [epoch, step]."""
    lines = [line([1, step], {"batch_samplesps": 10.0 * step}, step) for step in range(5, 15)]
    lines += [line([0, 20], {"loss": 2.0}, 20.0), line([0, 40], {"loss": 1.0}, 40.0)]
    (record,) = records(write(tmp_path / "log.json", lines))
    assert losses(record) == [(20, 2.0), (40, 1.0)] and record.training["batch_samplesps"].last.step == 14


@pytest.mark.parametrize("content", [b"", b"\n", b'{"a": 1}\nhello\n', b"\x00\xff" * 9999, b"DLLL nothing\n"])
def test_a_file_without_lines_of_a_log(tmp_path, content):
    path = tmp_path / "log.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="holds no line of a log; expected lines that begin with"):
        find(str(path))


def test_lines_of_another_shape_are_left_out(tmp_path):
    wrong = [
        line("RUN", {"id": 5, "steps": "x", "samples": [1], "tables": {"a": 1}, "placement": "p", "features": [1], "resumed_step": "a"}, 1.0),
        line("EVALUATION", {"split": None, "deciles": [[0, 0]], "histogram": {}}, 2.0),
        line("TABLES", {"touched": [1], "norms": 5, "memory_gib": "x"}, 2.0),
        line("CHECKPOINT", {}, 3.0),
        line("IMPORTANCE", {"features": [{}], "copies": [1]}, 3.0),
        line([0, 1, 2], {"loss": 1.0}, 4.0),
        line({"a": 1}, {"loss": 1.0}, 4.0),
        line([0, True], {"loss": 1.0}, 4.0),
        "DLLL [1]\n",
        "DLLL {}\n",
        line([0, 10], {"loss": "text", "learning_rate": [1], "step_time_ms": 2.0}, 5.0),
    ]
    (record,) = records(write(tmp_path / "log.json", wrong))
    assert list(record.training) and record.training["step_time_ms"].last.value == 2.0 and record.training["loss"].last is None
    assert record.about == {} and record.tables == {} and record.importance == {}


def test_metadata_and_order_of_keys(tmp_path):
    plain = json.dumps({"data": {"loss": 0.25}, "step": [0, 30], "type": "LOG", "timestamp": "3.5"})
    assert head_of(plain.encode()).numbers == (0, 30) and parsed(plain.encode()).seconds == 3.5
    metadata = 'DLLL {"timestamp": "1", "type": "METADATA", "metric": "throughput", "metadata": {"unit": "samples/s"}}\n'
    path = write(tmp_path / "log.json", [metadata, f"DLLL {plain}\n", "a foreign line\n"])
    assert len(list(raw_lines(path))) == 2
    (record,) = records(path)
    assert losses(record) == [(30, 0.25)] and record.cut == 0


def test_compact_json(tmp_path):
    text = json.dumps({"timestamp": "1", "step": "RUN", "data": about()}, separators=(",", ":"))
    assert head_of(text.encode()).name == "RUN"


def test_fault_and_stop(tmp_path):
    lines = run_lines(range(10, 41, 10))[:6]
    stopped = line("FAULT", {"epoch": 0, "step": 40, "message": "SIGTERM", "stopped": True}, 1050.0)
    (record,) = records(write(tmp_path / "log.json", [*lines, stopped]))
    assert record.fault["stopped"] and record.final is None and record.events[-1].kind == "stopped" and record.events[-1].step == 40
    resumed = line("RUN", about(resumed=40), 1100.0)
    (record,) = records(write(tmp_path / "log.json", [*lines, stopped, resumed, line([], {"auc": 0.5}, 1200.0)]))
    assert record.fault is None and record.final == {"auc": 0.5} and [event.kind for event in record.events] == ["start", "stopped", "resume", "end"]


def test_the_outcome_is_of_the_weights_that_were_tested(tmp_path):
    """The test is of the best weights, step 50; so the validation split's figures are those of step 50, too, not of the last step."""
    lines = [line("RUN", about(), 1.0)]
    lines += [line("EVALUATION", {**evaluation("valid", step), "auc": auc}, step) for step, auc in ((25, 0.7), (50, 0.9), (75, 0.8))]
    (record,) = records(write(tmp_path / "log.json", [*lines, line("EVALUATION", evaluation("test", 50, True), 90.0)]))
    assert [(one.split, one.step, one.figures["auc"]) for one in outcomes(record)] == [
        ("test", 50, evaluation("test", 50)["auc"]),
        ("valid", 50, 0.9),
    ]
