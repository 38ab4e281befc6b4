"""The log file's lines."""

import json
import math
import re
import sys
import types
from datetime import datetime

import pytest

from utils.errors import UserError
from utils.logging import UNITS, RunLog


def read(path):
    lines = path.read_text().splitlines()
    assert all(line.startswith("DLLL {") for line in lines)
    return [json.loads(line.removeprefix("DLLL "), parse_constant=lambda word: pytest.fail(f"{word} is not JSON")) for line in lines]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "log.json"


def test_lines_have_the_format_of_dllogger(path):
    log = RunLog(str(path), {"batch_size": 4, "dims": (1, 2), "path": None})
    log.log((0, 10), {"loss": 0.5})
    log.close()
    for line in read(path):
        assert list(line)[:4] == ["timestamp", "datetime", "elapsedtime", "type"]
        assert float(line["timestamp"]) > 1.6e9 and 0 <= float(line["elapsedtime"]) < 60
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{6})?\+00:00", line["datetime"])
        assert datetime.fromisoformat(line["datetime"]).timestamp() == pytest.approx(float(line["timestamp"]), abs=1e-5)
        assert set(line) - {"timestamp", "datetime", "elapsedtime", "type"} == ({"step", "data"} if line["type"] == "LOG" else {"metric", "metadata"})


def test_order_is_parameters_units_data(path):
    log = RunLog(str(path), {"batch_size": 4, "dims": (1, 2), "path": None})
    log.log((0, 10), {"loss": 0.5})
    log.log((), {"auc": 0.75, "samples": 3})
    log.close()
    first, *units, data, final = read(path)
    assert (first["step"], first["data"]) == ("PARAMETER", {"batch_size": 4, "dims": [1, 2], "path": None})
    assert {line["metric"]: line["metadata"] for line in units} == {name: {"unit": unit} for name, unit in UNITS.items()}
    assert all(line["type"] == "METADATA" for line in units)
    assert (data["step"], data["data"]) == ([0, 10], {"loss": 0.5})
    assert (final["step"], final["data"]) == ([], {"auc": 0.75, "samples": 3})


def test_units_of_throughput_and_latency():
    for name in ("throughput", "mean_inference_throughput"):
        assert UNITS[name] == "samples/s"
    for name in ("mean_inference_latency", "p90_inference_latency", "p95_inference_latency", "p99_inference_latency"):
        assert UNITS[name] == "s"


def test_values_that_are_not_finite_become_null(path):
    log = RunLog(str(path), {})
    log.log((), {"a": math.nan, "b": math.inf, "c": -math.inf, "d": None, "e": 1})
    log.close()
    assert read(path)[-1]["data"] == {"a": None, "b": None, "c": None, "d": None, "e": 1}


def test_lines_are_flushed_at_once(path):
    log = RunLog(str(path), {})
    log.log(3, {"loss": 1.0})
    assert read(path)[-1]["step"] == 3
    log.close()


def test_an_older_log_is_kept_under_a_number(path):
    for seed in (1, 2):
        log = RunLog(str(path), {"seed": seed})
        log.close()
    for file, seed in ((path, 2), (path.with_name("log.1.json"), 1)):
        assert [line["data"]["seed"] for line in read(file) if line["type"] == "LOG"] == [seed]


class Observer:
    """An observer that keeps what it is given; its disk is full from the line `full` on."""

    def __init__(self, full=None):
        self.lines, self.closed, self._full = [], 0, full

    def line(self, step, data):
        if len(self.lines) == self._full:
            raise OSError(28, "No space left on device", "events")
        self.lines.append((step, data))

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("with_file", [True, False])
def test_observers_get_every_line_as_logged(path, with_file):
    observer = Observer()
    log = RunLog(str(path) if with_file else "", {"dims": (1, 2)}, observers=[observer])
    log.log((0, 5), {"loss": math.nan, "nested": {"bins": [1, math.inf]}})
    log.log("RUN", {"id": "a"})
    log.log((), {"auc": 0.5})
    log.close()
    log.close()
    expected = [("PARAMETER", {"dims": [1, 2]}), ([0, 5], {"loss": None, "nested": {"bins": [1, None]}}), ("RUN", {"id": "a"}), ([], {"auc": 0.5})]
    assert observer.lines == expected and observer.closed == 1
    assert path.exists() == with_file
    if with_file:
        assert [(line["step"], line["data"]) for line in read(path) if line["type"] == "LOG"] == expected


def test_an_observer_that_fails_is_dropped_with_one_warning(path):
    warned, broken, sound = [], Observer(full=1), Observer()
    log = RunLog(str(path), {}, warn=warned.append, observers=[broken, sound])
    for step in range(3):
        log.log((0, step), {"loss": 0.5})
    log.close()
    assert len(broken.lines) == 1 and len(sound.lines) == 4 and len(read(path)) == 4 + len(UNITS)
    assert warned == ["events: No space left on device; nothing more is written there, the run continues"]


def test_empty_path_writes_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = RunLog("", {"a": 1})
    log.log((), {"a": 1})
    log.flush()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_closing_twice_is_harmless(path):
    log = RunLog(str(path), {})
    log.close()
    log.log((), {"afterwards": 1})
    log.close()
    assert "afterwards" not in path.read_text()


def test_unwritable_path_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "log.json"):
        with pytest.raises(UserError, match=r"--log_path .*: "):
            RunLog(str(path), {})


def test_dllogger_appends_to_the_file_of_a_run_that_goes_on(path, monkeypatch):
    path.parent.mkdir()
    path.write_text('DLLL {"step": "RUN", "data": {"id": "0123456789abcdef"}}\nDLLL {"cut')
    made = []
    fake = types.ModuleType("dllogger")
    fake.Verbosity = types.SimpleNamespace(VERBOSE=1)
    fake.JSONStreamBackend = lambda verbosity, filename, append=False: made.append((filename, append))
    fake.init = fake.log = fake.metadata = fake.flush = lambda *words, **named: None
    monkeypatch.setitem(sys.modules, "dllogger", fake)
    RunLog(str(path), {}, "0123456789abcdef").close()
    RunLog(str(path), {}, "fedcba9876543210").close()
    assert made == [(str(path), True), (str(path), False)]
    assert path.with_name("log.1.json").read_text().endswith('DLLL {"cut\n') and path.read_text() == ""


def test_dllogger_is_used_if_installed(path, monkeypatch):
    calls = []
    fake = types.ModuleType("dllogger")
    fake.Verbosity = types.SimpleNamespace(VERBOSE=1)
    fake.JSONStreamBackend = lambda verbosity, filename: (verbosity, filename)
    fake.init = lambda backends: calls.append(("init", backends))
    fake.log = lambda step, data: calls.append(("log", step, data))
    fake.metadata = lambda metric, metadata: calls.append(("metadata", metric, metadata))
    fake.flush = lambda: calls.append(("flush",))
    monkeypatch.setitem(sys.modules, "dllogger", fake)
    log = RunLog(str(path), {"a": 1})
    log.log((0, 5), {"loss": math.nan})
    log.log((), {"auc": 0.5})
    log.close()
    assert calls[0] == ("init", [(1, str(path))])
    assert calls[1] == ("log", "PARAMETER", {"a": 1})
    assert calls[2 : 2 + len(UNITS)] == [("metadata", name, {"unit": unit}) for name, unit in UNITS.items()]
    assert calls[2 + len(UNITS) :] == [("log", (0, 5), {"loss": None}), ("log", (), {"auc": 0.5}), ("flush",)]
