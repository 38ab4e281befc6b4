"""Tests of `python -m report --compare`: figures of files, intervals, verdicts, and one line for each invalid file."""

import json

import numpy as np
import pytest

from report.benchmark_file import read
from report.compare import CANNOT_TELL, DRAWS, compare, differing, interval, lines, main
from tests.helpers.commands import run, run_here
from tests.helpers.errors import refused
from utils.errors import UserError

SLOW, FAST = [2.0, 2.1, 2.2, 2.0, 2.1, 2.3, 2.1], [1.0, 1.1, 1.0, 1.2, 1.1, 1.0, 1.0]
OPTIONS = {"num_rounds": 7, "json": "FILE", "quick": False, "batch_size": 8192}
HEADER = {
    "command": "-m benchmarks.train_step --json x",
    "time": "2026-11-24T10:00:00+0000",
    "machine": {"processor": "Xeon", "processors": 2, "load_before": 0.1},
    "commit": "0123456789ab",
    "options": OPTIONS,
}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a file of figures, with a header, and reads it."""

    def write(name, figures, header=HEADER):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(header | figures))
        return path

    return write


def step_file(project, keras, ids="uniform"):
    """Return figures as `benchmarks.train_step` writes them."""
    result = {"precision": "float32", "ids": ids, "rows": [100, 100], "seconds": {"project": project, "Keras": keras}, "best_peer": "Keras"}
    return {"results": [result | {"steps": {"project": {"samples_per_s": 3.0}}}]}


# Figures of a file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (step_file([1.0, 2.0], [3.0, 4.0]), {"float32, uniform, project": (1, 2), "float32, uniform, Keras": (3, 4)}),
        ({"seconds": {"save": [1, 2], "restore": [3]}}, {"save": (1, 2), "restore": (3,)}),
        ({"seconds": {"scorer": {"1": [1, 2], "64": [3, 4]}}}, {"scorer, 1": (1, 2), "scorer, 64": (3, 4)}),
        ({"results": [{"precision": "float32", "ids": "uniform", "seconds": {"lookup": {"x": [1]}}}]}, {"float32, uniform, lookup, x": (1,)}),
        ({"calls": {"scorer": {"1": [[1, 5, 2], [3, 4]]}}, "pass_s": [7, 8]}, {"scorer, 1": (2, 3.5), "pass_s": (7, 8)}),
        ({"rounds": {"AUC": [{"seconds": 1, "peak_bytes": 5}, {"seconds": 2, "peak_bytes": 6}]}}, {"AUC": [(1, 2), (5, 6)]}),
        ({"rounds": {"build": {"seconds": [1, 2], "before_bytes": [3, 4]}}}, {"build": (1, 2), "build, before_bytes": (3, 4)}),
        ({"rounds": [{"ready_s": 1, "processes": 2}, {"ready_s": 3, "processes": 2}]}, {"ready_s": (1, 3)}),
        ({"workers": {"2": {"threads": 1, "step_seconds": [1, 2]}}}, {"workers, 2, step_seconds": (1, 2)}),
        ({"log": {"rows": 9, "seconds": {"pandas": [1]}, "rounds": {"peak_mib": {"pandas": [4]}}}}, {"log, pandas": [(1,), (4,)]}),
        ({"results": {"float32": {"auc": [0.7, 0.8], "log_loss": [0.5, 0.4]}}}, {"float32": [(0.7, 0.8), (0.5, 0.4)]}),
        ({"rounds_of": {"samples_per_s": {"a": [5, 6]}}}, {"rounds_of, samples_per_s, a": (5, 6)}),
    ],
    ids=["train_step", "checkpoint", "serving", "bags", "inference", "metrics", "startup", "replicas", "scaling", "preproc", "accuracy", "rates"],
)
def test_figures_of_every_form(written, content, expected):
    found = {}
    for figure in read(written("one", content)).figures.values():
        found.setdefault(figure.name, []).append(figure.rounds)
    assert found == {name: values if isinstance(values, list) else [values] for name, values in expected.items()}


def test_units_and_the_direction_that_is_better(written):
    content = {"step_seconds": [1], "batch_ms": [1], "samples_per_s": [1], "peak_mib": [1], "auc": [1], "log_loss": [1], "second_step": [1]}
    units = {figure.path[-1]: (figure.unit.title, figure.unit.lower_is_better) for figure in read(written("one", content)).figures.values()}
    assert units == {
        "step_seconds": ("seconds", True),
        "batch_ms": ("milliseconds", True),
        "samples_per_s": ("samples a second", False),
        "peak_mib": ("memory, mib", True),
        "auc": ("AUC", False),
        "log_loss": ("loss", True),
        "second_step": ("seconds", True),
    }


def test_benchmarks_describe_machine_commit_and_rounds(tmp_path):
    """A file that a benchmark writes today is compared with itself."""
    path = tmp_path / "one.json"
    assert run("-m", "benchmarks.metrics", "--quick", "--num_rounds", 6, "--json", path).returncode == 0
    one = read(path)
    assert one.benchmark == "benchmarks.metrics" and one.mapping("machine")["processor"] and one.mapping("software")["numpy"]
    assert len(one.header["commit"].rstrip("+")) == 12
    found = compare(one, one)
    assert len(found.differences) >= 5 and {difference.verdict for difference in found.differences} == {CANNOT_TELL}
    assert {difference.ratio for difference in found.differences} == {1} and not differing(one, one)


# Intervals and verdicts -----------------------------------------------------------------------------------------------------


def test_interval_of_a_hand_worked_example():
    """One round against two: medians of the new rounds are 2, 3 or 4 with probabilities 1/4, 1/2, 1/4."""
    assert interval([2.0], [2.0, 4.0]) == (1.0, 2.0)
    assert interval([1.0], [3.0]) == (3.0, 3.0)
    assert interval([2.0, 4.0], [2.0]) == (0.5, 1.0)


def test_interval_agrees_with_a_loop():
    """The vectorised draws equal those of one resample at a time, with the exact quantiles of 200,000 of them, to 2%."""
    draw, old, new = np.random.default_rng(5), np.array(SLOW), np.array([1.7, 1.9, 2.6, 2.0, 1.8, 1.9])
    ratios = sorted(np.median(draw.choice(new, len(new))) / np.median(draw.choice(old, len(old))) for _ in range(20_000))
    assert interval(old, new) == pytest.approx((ratios[500], ratios[19_500]), rel=0.02)


def test_interval_does_not_depend_on_the_size_of_a_block(monkeypatch):
    new = np.linspace(1, 2, 40)
    expected = interval(SLOW, new)
    monkeypatch.setattr("report.compare._VALUES_AT_ONCE", 400)
    assert interval(SLOW, new) == pytest.approx(expected, rel=0.02) and DRAWS == 10_000


@pytest.mark.parametrize("rounds", [6, 10, 25])
@pytest.mark.parametrize("noise", ["normal", "skewed", "outliers"])
def test_interval_holds_the_true_ratio_in_95_percent_of_draws(rounds, noise, monkeypatch):
    """The true ratio is 0.9; the shares of 400 draws vary by 0.011, so 0.92 is three deviations below 0.95."""
    monkeypatch.setattr("report.compare.DRAWS", 1000)
    draw = np.random.default_rng(rounds)
    shapes = {
        "normal": lambda: np.exp(0.05 * draw.standard_normal(rounds)),
        "skewed": lambda: 1 + draw.exponential(0.1, rounds),
        "outliers": lambda: 1 + 0.02 * np.abs(draw.standard_t(2, rounds)),
    }
    held = 0
    for _ in range(400):
        low, high = interval(shapes[noise](), 0.9 * shapes[noise]())
        held += low <= 0.9 <= high
    assert 0.92 <= held / 400 < 1


def verdict_of(written, old, new, unit="seconds"):
    (one,) = compare(read(written("old", {unit: {"a": old}})), read(written("new", {unit: {"a": new}}))).differences
    return one.verdict


def test_equal_data_get_no_verdict_in_95_percent_of_draws(written, monkeypatch):
    monkeypatch.setattr("report.compare.DRAWS", 1000)
    draw = np.random.default_rng(0)
    names = [str(number) for number in range(400)]
    rounds = [{name: np.exp(0.1 * draw.standard_normal(8)).tolist() for name in names} for _ in range(2)]
    found = compare(*(read(written(str(place), {"seconds": some})) for place, some in enumerate(rounds)))
    verdicts = [one.verdict for one in found.differences]
    assert verdicts.count(CANNOT_TELL) >= 0.92 * 400 and set(verdicts) <= {"faster", "slower", CANNOT_TELL}
    assert "of 400 figures about 20.0 would get a verdict by chance, had nothing changed" in list(lines(found))


@pytest.mark.parametrize(
    ("unit", "fewer", "more"),
    [
        ("seconds", "faster", "slower"),
        ("step_ms", "faster", "slower"),
        ("samples_per_s", "slower", "faster"),
        ("throughput", "slower", "faster"),
        ("peak_mib", "smaller", "larger"),
        ("auc", "worse", "better"),
        ("log_loss", "better", "worse"),
    ],
)
def test_verdicts_by_unit(written, unit, fewer, more):
    assert (verdict_of(written, SLOW, FAST, unit), verdict_of(written, FAST, SLOW, unit)) == (fewer, more)


@pytest.mark.parametrize(("old", "new", "expected"), [(6, 6, "faster"), (5, 7, CANNOT_TELL), (7, 5, CANNOT_TELL), (1, 1, CANNOT_TELL)])
def test_fewer_than_six_rounds_get_no_verdict(written, old, new, expected):
    assert verdict_of(written, SLOW[:old], FAST[:new]) == expected


def test_relative_to_a_contender_cancels_the_machine(written):
    """The new machine is half as fast: the project looks slower and is faster than its peer was."""
    steady = [1.0, 1.01, 0.99, 1.0, 1.02, 1.0]
    noise = [1.0, 5.0, 2.0, 1.0, 3.0, 1.5]
    old = read(written("old", step_file([0.8 * x * n for x, n in zip(steady, noise, strict=True)], noise)))
    new = read(written("new", step_file([2 * 0.6 * x * n for x, n in zip(steady, noise, strict=True)], [2 * n for n in noise])))
    plain = {one.new.name: one.verdict for one in compare(old, new).differences}
    assert plain == {"float32, uniform, project": CANNOT_TELL, "float32, uniform, Keras": CANNOT_TELL}
    (one,) = compare(old, new, "Keras").differences
    assert one.verdict == "faster" and one.ratio == pytest.approx(0.75) and one.new.name == "float32, uniform, project"


def test_relative_to_a_contender_above_the_last_key(written):
    content = {"seconds": {"ours": {"1": [1.0] * 6, "64": [2.0] * 6}, "peer": {"1": [2.0] * 6, "64": [8.0] * 6}}}
    one = read(written("one", content))
    assert {found.new.name: found.new.rounds[0] for found in compare(one, one, "peer").differences} == {"ours, 1": 0.5, "ours, 64": 0.25}


# The printed text -----------------------------------------------------------------------------------------------------------


def test_differences_of_machine_options_and_commit_are_one_line_above_the_table(written):
    other = HEADER | {
        "machine": {"processor": "EPYC", "processors": 4, "load_before": 3.0},
        "commit": "ffff00001111+",
        "options": OPTIONS | {"batch_size": 64, "json": "other"},
    }
    found = list(lines(compare(read(written("old", {"seconds": {"a": SLOW}})), read(written("new", {"seconds": {"a": FAST}}, other)))))
    said = "processor Xeon / EPYC; processors 2 / 4; --batch_size 8192 / 64; commit 0123456789ab / ffff00001111+"
    assert found[2] == f"differs, old / new: {said}" and found[1].endswith("commit ffff00001111 with changes")
    row = next(line for line in found if line.startswith("a "))
    assert row.split() == ["a", "2.1", "0.14", "1", "0.20", "0.476", *row.split()[6:9], "7,", "7", "faster"]
    same = list(lines(compare(*[read(written("old", {"seconds": {"a": SLOW}}))] * 2)))
    assert same[2] == "same machine and options"


def test_figures_of_one_file_only_are_listed(written):
    old = read(written("old", {"seconds": {"a": FAST, "gone": FAST, "zero": [0, 0]}}))
    new = read(written("new", {"seconds": {"a": FAST, "added": FAST, "zero": [1, 1], "none": []}}))
    found = list(lines(compare(old, new)))
    assert "only in old: gone" in found and "only in new: added" in found
    assert f"not compared: {old.path}: zero: it is 0 in 2 of 2 rounds" in found and f"not compared: {new.path}: none: it has no rounds" in found


def test_command_prints_and_writes_json(written, tmp_path):
    files = written("old", step_file(SLOW, SLOW)), written("new", step_file(FAST, SLOW[::-1]))
    ended = run_here("-m", "report", "--compare", *files, "--json", tmp_path / "out.json")
    assert (ended.returncode, ended.stderr) == (0, "") and "seconds (lower is better)" in ended.stdout
    content = json.loads((tmp_path / "out.json").read_text())
    project, keras = content["figures"]
    assert (project["verdict"], keras["verdict"]) == ("faster", CANNOT_TELL) and project["low"] < project["ratio"] < project["high"] < 1
    assert project["old"] == {"median": 2.1, "spread": pytest.approx(0.3 / 2.1), "rounds": 7} and project["better"] == "lower"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.json", "old.json", "out.json"]


def test_help_is_that_of_compare():
    ended = run_here("-m", "report", "--compare", "--help")
    assert ended.returncode == 0 and ended.stdout.startswith("usage: python -m report --compare") and "--relative_to NAME" in ended.stdout


def test_control_characters_of_names_are_escaped(written):
    one = read(written("one", {"seconds": {"a\x1b[31m\n": FAST}}))
    assert "\x1b" not in "".join(lines(compare(one, one))) and "a\\x1b[31m\\n" in "".join(lines(compare(one, one)))


# Invalid files and flags ----------------------------------------------------------------------------------------------------

INVALID = {
    "not JSON": ("{", "not JSON ("),
    "a log": ('DLLL {"step": []}\n', "the log of a run, not figures of a benchmark; type python -m report "),
    "empty": ("", "not JSON ("),
    "a list": ("[1, 2]", "its JSON is a list, not an object"),
    "a number": ("3", "its JSON is 3, not an object"),
    "no figures": ('{"machine": {}, "options": {}}', "no figure with a value for each round"),
    "scalars only": ('{"seconds": 3, "auc": 0.7}', "no figure with a value for each round"),
    "NaN": ('{"seconds": {"a": [1, NaN]}}', "a: round 2 is nan (seconds); expected a positive number"),
    "infinity": ('{"seconds": {"a": [Infinity]}}', "a: round 1 is inf (seconds); expected a positive number"),
    "too large": ('{"seconds": {"a": [1%s]}}' % ("0" * 400), "a: round 1 is inf (seconds); expected a positive number"),
    "too many digits": ('{"seconds": {"a": [1%s]}}' % ("0" * 5000), "not JSON ("),
    "negative": ('{"seconds": {"a": [1, -1]}}', "a: round 2 is -1 (seconds); expected a positive number"),
    "a zero time": ('{"seconds": {"a": [1, 0]}}', "a: round 2 is 0 (seconds); expected a positive number"),
    "zero times": ('{"seconds": {"a": [0, 0]}}', "no figure with a value for each round (a: it is 0 in 2 of 2 rounds)"),
    "a text": ('{"seconds": {"a": [1, "2"]}}', 'seconds, a: round 2 is "2"; expected a file that a benchmark wrote'),
    "null": ('{"seconds": {"a": [null]}}', "seconds, a: round 1 is null; expected"),
    "true": ('{"seconds": {"a": [true]}}', "seconds, a: round 1 is true; expected"),
    "calls of calls": ('{"calls": {"a": [[[1]]]}}', "calls, a: round 1 is [[[1]]]"[:-6]),
    "deep": ("[" * 100_000, "its JSON is nested too deeply"),
    "bytes": (b"\xff\xfe\x00", "not a text"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_files_are_one_line(written, tmp_path, name):
    content, message = INVALID[name]
    path = tmp_path / "bad.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    good = written("good", {"seconds": {"a": FAST}})
    for pair in ((path, good), (good, path)):
        with pytest.raises(UserError) as error:
            main(["--compare", *map(str, pair)])
        assert str(error.value).startswith(f"{path}: {message}"), str(error.value)
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compare", "GOOD", "/no/such"], "/no/such: no such file; expected a file that a benchmark wrote"),
        (["--compare", "GOOD", "FOLDER"], "Is a directory"),
        (["--compare", "GOOD"], "--compare: found 1 of two files; expected python -m report --compare old.json new.json"),
        (["--compare", "GOOD", "GOOD", "GOOD"], "--compare: found 3 of two files"),
        (["--compare", "GOOD", "GOOD", "-o", "x.html"], "unknown flag -o"),
        (["--compare", "GOOD", "OTHER"], "no figure is in both files: "),
        (
            ["--compare", "GOOD", "GOOD", "--relative_to", "kears"],
            "--relative_to kears: no such contender in both files; expected one of Keras, project",
        ),
        (["--compare", "OTHER", "OTHER", "--relative_to", "b"], "--relative_to b: no such contender in both files; expected one of none here"),
        (["--compare", "UNEVEN", "UNEVEN", "--relative_to", "Keras"], "have 2 and 3 rounds; expected as many of both"),
        (["--compare", "GOOD", "GOOD", "--json", "/no/such/file"], "--json /no/such/file: its folder does not exist"),
        (["--compare", "GOOD", "GOOD", "--json", "GOOD"], "is one of the files to compare, and would be overwritten"),
    ],
)
def test_invalid_flags_are_one_line(written, tmp_path, words, message):
    files = {"GOOD": written("good", step_file(SLOW, FAST)), "OTHER": written("other", {"seconds": {"b": FAST}}), "FOLDER": tmp_path}
    files["UNEVEN"] = written("uneven", step_file([1, 2, 3], [1, 2]))
    before = files["GOOD"].read_bytes()
    with refused(message):
        main([str(files.get(word, word)) for word in words])
    assert files["GOOD"].read_bytes() == before


def test_compare_without_tensorflow(written):
    path = written("one", {"seconds": {"a": FAST}})
    code = f"import sys; from report.compare import main; main(['--compare', {str(path)!r}, {str(path)!r}]); assert 'tensorflow' not in sys.modules"
    assert run("-c", code).returncode == 0
