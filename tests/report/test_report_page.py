"""Tests of the page in a real browser: every figure of it against the log, no request, no error, no overflow, keyboard, accessibility."""

import json
import math
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from report.command import main
from tests.report.browser import Page, executable
from tests.report.logs import IMPORTANCE, about, evaluation, line, run_lines, training, write

NORMAL = 1.959963984540054
AXE = Path(__file__).parent / "assets" / "axe.min.js"
# Every <data> of the page, with the place where it stands: the table's caption, row and column; or the title and name of a card or fact.
FIGURES = """[...document.querySelectorAll("main data")].map((one) => {
  const cell = one.closest("td, th"), table = one.closest("table");
  if (table) {
    const row = cell.closest("tr"), inside = [...cell.querySelectorAll("data")].indexOf(one);
    const head = [...table.querySelectorAll("thead th")].map((each) => each.textContent);
    const at = [table.caption.textContent, [...table.tBodies[0].rows].indexOf(row), head[[...row.cells].indexOf(cell)], inside];
    return [at.join(" | "), one.value, one.textContent];
  }
  const title = one.closest("dl").previousElementSibling.textContent, inside = [...one.closest("dd").querySelectorAll("data")].indexOf(one);
  return [[title, one.closest("div").querySelector("dt").textContent, inside].join(" | "), one.value, one.textContent];
})"""
OPENED = "document.querySelectorAll('details').forEach((one) => (one.open = true)); new Promise((done) => setTimeout(done, 200))"
# Texts outside figures: what they say of numbers must be in the log, too.
TEXTS = """(() => { const copy = document.querySelector("main").cloneNode(true);
  copy.querySelectorAll("data, pre, .chart, button").forEach((one) => one.remove()); return copy.textContent; })()"""
OF_METHOD = {"95", "200"}  # numbers in explanations: intervals of 95%, 200 bins

pytestmark = pytest.mark.skipif(executable() is None and os.environ.get("CI") != "true", reason="no Chromium: ./scripts/install --browser")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    """Return a browser for all tests of this file."""
    with Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Return the report of a whole run."""
    folder = tmp_path_factory.mktemp("run")
    write(folder / "log.json", run_lines())
    assert main([str(folder / "log.json"), "-o", str(folder / "report.html")]) == 0
    return folder / "report.html"


def rows_of(caption: str, columns: dict[str, list]) -> dict[str, float]:
    """Return the figures of a table, by place; None is no figure."""
    return {
        f"{caption} | {row} | {name} | 0": value
        for name, values in columns.items()
        for row, value in enumerate(values)
        if isinstance(value, (int, float))
    }


def limits(value: float, variance: float) -> tuple[float, float]:
    """Return a normal interval of 95%."""
    return value - NORMAL * math.sqrt(variance), value + NORMAL * math.sqrt(variance)


def wilson(positives: int, count: int) -> tuple[float, float]:
    """Return Wilson's interval: the roots of (p - share)² = z² p (1 - p) / n."""
    a, b, c = 1 + NORMAL**2 / count, -2 * positives / count - NORMAL**2 / count, (positives / count) ** 2
    root = math.sqrt(b * b - 4 * a * c)
    return (-b - root) / 2 / a, (-b + root) / 2 / a


def of_training() -> dict[str, float]:
    """Return the figures of the curves of training lines."""
    steps = list(range(10, 101, 10))
    data = [training(step) for step in steps]
    base = {"step": steps, "samples": [one["samples"] for one in data], "seconds": steps}
    found = {}
    for title, columns in {
        "Training loss": {"training loss": "loss"},
        "Learning rates": {"dense layers": "learning_rate", "tables": "embedding_learning_rate"},
        "Throughput": {"over all workers": "samples_per_s"},
        "Time of a step": {"mean time of a step": "step_time_ms"},
        "Memory of the first worker": {"resident set": "memory_gib"},
        "Where a step's time goes": {"waiting for the reader": "input_ms", "exchanges": "exchange_ms", "saving": "saving_ms"},
        "Norms of the gradients": {"dense": "gradient_norm/dense"},
        "Norms of the weights": {"tables": "weight_norm/tables"},
    }.items():
        found |= rows_of(f"numbers of {title}", base | {label: [one[key] for one in data] for label, key in columns.items()})
    rest = [one["step_time_ms"] - one["input_ms"] - one["exchange_ms"] for one in data]
    return found | rows_of("numbers of Where a step's time goes", {"the rest": rest})


def of_evaluations() -> dict[str, float]:
    """Return the figures of the curves of evaluations."""
    valid, test = [evaluation("valid", step) for step in (50, 100)], evaluation("test", 100, True, 960)
    base = {"step": [50, 100], "samples": [6400, 12800], "seconds": [50, 100]}
    found = {}
    for title, key, variance in (
        ("AUC", "auc", "auc_variance"),
        ("Log loss", "log_loss", "log_loss_variance"),
        ("Normalised entropy", "normalized_entropy", None),
        ("Calibration (predicted / observed)", "calibration", None),
    ):
        columns = {"valid": [one[key] for one in valid], "test": [None, test[key]]}
        if variance:
            pairs = [limits(one[key], one[variance]) for one in valid]
            columns |= {"valid, low": [low for low, _ in pairs], "valid, high": [high for _, high in pairs]}
            low, high = limits(test[key], test[variance])
            columns |= {"test, low": [None, low], "test, high": [None, high]}
        found |= rows_of(f"numbers of {title}", base | columns)
    return found


def of_quality() -> dict[str, float]:
    """Return the figures of calibration, ROC, precision-recall and scores, from the test's summary."""
    summary = evaluation("test", 100, True, 960)
    tenths = summary["deciles"]
    predicted = [total / count for count, _, total, _, _ in tenths]
    intervals = [wilson(positives, count) for count, positives, *_ in tenths]
    name = "numbers of Calibration by decile"
    found = rows_of(
        name,
        {
            "mean predicted probability": predicted,
            "observed share of positives": [positives / count for count, positives, *_ in tenths],
            "observed share of positives, low": [low for low, _ in intervals],
            "observed share of positives, high": [high for _, high in intervals],
            "rows": [one[0] for one in tenths],
            "positives": [one[1] for one in tenths],
            "lowest": [one[3] for one in tenths],
            "highest": [one[4] for one in tenths],
            "perfectly calibrated": [predicted[0], *[None] * 8, predicted[-1]],
        },
    )
    histogram = summary["histogram"]
    negative, positive = histogram["negative"], histogram["positive"]
    edges = [-4.0 + 10.0 * place / 200 for place in range(201)]
    found |= rows_of(
        "numbers of Scores by class",
        {
            "logit": [(one + other) / 2 for one, other in pairwise(edges)],
            "negative": [100 * count / 720 for count in negative],
            "positive": [100 * count / 240 for count in positive],
            "from": edges[:-1],
            "to": edges[1:],
            "negative rows": negative,
            "positive rows": positive,
        },
    )
    return found


def above() -> tuple[list[float], list[float], list[float | None]]:
    """Return false positive rate, true positive rate and precision at the edges of the bins, from the highest down, by slow sums."""
    histogram = evaluation("test", 100, True, 960)["histogram"]
    false, true, precision = [], [], []
    for edge in range(200, -1, -1):
        negatives, positives = sum(histogram["negative"][edge:]), sum(histogram["positive"][edge:])
        false.append(negatives / 720)
        true.append(positives / 240)
        precision.append(positives / (negatives + positives) if negatives + positives else None)
    return false, true, precision


def of_tables() -> dict[str, float]:
    """Return the figures of the tables about workers, tables, importance, events, groups."""
    ranked = [IMPORTANCE["features"][place] for place in (1, 0, 2)]
    found = rows_of("workers", {"tables' memory": [6400, 256], "peak memory": [0.5 * 2**30, 0.25 * 2**30], "ids looked up a step": [128, 384]})
    found |= rows_of("workers", {"sent a step": [4096, 8192]})
    found |= rows_of("numbers of Memory of the tables", {"MiB": [6400 / 2**20, 256 / 2**20]})
    found |= rows_of("numbers of Sent in a step", {"MiB": [4096 / 2**20, 8192 / 2**20]})
    touched = {"user": 0.78125, "item": 0.75}
    found |= rows_of(
        "tables", {"rows": [100, 4], "width": [16, 16], "memory": [6400, 256], "rows touched": list(touched.values()), "L2 norm": [3.5, 1.25]}
    )
    found |= rows_of("numbers of Rows touched, by table", {"% of the rows": [78.125, 75.0]})
    steps = {"step": [50, 100], "samples": [6400, 12800], "seconds": [50, 100]}
    found |= rows_of("numbers of Rows touched, by step", {**steps, "user": [50 / 128, 0.78125], "item": [0.75, 0.75], "seconds": [50, 102]})
    found |= rows_of("numbers of Norms of tables", {**steps, "user": [3.5, 3.5], "item": [1.25, 1.25]})
    for key, title in (("auc_lost", "AUC lost"), ("log_loss_lost", "log loss added")):
        found |= rows_of("importance", {title: [one[key][0] for one in ranked]})
        for row, one in enumerate(ranked):
            found |= {f"importance | {row} | {title}, 95% | {place}": one[key][place + 1] for place in (0, 1)}
        whole = f"numbers of {title[:1].upper()}{title[1:]} without a feature"
        found |= rows_of(whole, {title: [one[key][0] for one in ranked], f"{title}, low": [one[key][1] for one in ranked]})
        found |= rows_of(whole, {f"{title}, high": [one[key][2] for one in ranked]})
    found |= rows_of("events", {"seconds": [0, 50.5, 100.5, 103], "step": [0, 50, 100, 100]})
    found |= rows_of("numbers of Saves, faults and resumes", {"seconds since the run began": [0, 50.5, 100.5, 103]})
    found |= rows_of("numbers of Saves, faults and resumes", {"start": [0], "checkpoint": [None, 1, 1], "end": [None, None, None, 2]})
    return found | rows_of("metrics by group", {"value": [0.3125]})


def of_cards() -> dict[str, float]:
    """Return the figures of the first screen."""
    found = {}
    for summary, title in ((evaluation("test", 100, True, 960), "test split, step 100"), (evaluation("valid", 100), "valid split, step 100")):
        for name, key in (("normalised entropy", "normalized_entropy"), ("calibration", "calibration"), ("samples", "samples")):
            found[f"{title} | {name} | 0"] = summary[key]
        found[f"{title} | click rate | 0"] = summary["positives"] / summary["samples"]
        for name, key in (("AUC", "auc"), ("log loss", "log_loss")):
            low, high = limits(summary[key], summary[f"{key}_variance"])
            found |= {f"{title} | {name} | {place}": value for place, value in enumerate((summary[key], low, high))}
    facts = {"parameters": (1664, 321), "rows": (12800, 640, 960), "batch": (128,), "workers": (2,), "ran for": (103,), "throughput": (9100.5,)}
    facts["memory"] = (2**29, 2**28)
    return found | {f"What ran | {name} | {place}": value for name, values in facts.items() for place, value in enumerate(values)}


def amount(text: str) -> float:
    """Return the number that a text shows, with its unit."""
    number, _, unit = text.replace(",", "").partition(" ")
    scale = {"": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    return float(number.removesuffix("%")) * (0.01 if number.endswith("%") else 1) * scale


def test_every_figure_of_the_page_is_the_logs(browser, report):
    browser.open(report)
    browser.run(OPENED)
    found = browser.run(FIGURES)
    values = {place: float(value) for place, value, _ in found}
    assert len(values) == len(found)
    expected = of_training() | of_evaluations() | of_quality() | of_tables() | of_cards()
    curves = {place: values.pop(place) for place in list(values) if place.startswith(("numbers of ROC", "numbers of Precision"))}
    assert set(values) == set(expected), sorted(set(values) ^ set(expected))[:20]
    wrong = {
        place: (value, expected[place]) for place, value in values.items() if not math.isclose(value, expected[place], rel_tol=1e-6, abs_tol=1e-9)
    }
    assert not wrong
    for place, value, text in found:
        assert math.isclose(amount(text), float(value), rel_tol=6e-4, abs_tol=1e-9), place
    false, true, precision = above()
    for title, x, y, across, up in (
        ("ROC", "false positive rate", "ROC", false, true),
        (
            "Precision and recall",
            "recall",
            "precision",
            *zip(*((one, other) for one, other in zip(true, precision, strict=True) if other is not None), strict=True),
        ),
    ):
        rows = {int(place.split(" | ")[1]) for place in curves if place.startswith(f"numbers of {title} | ")}
        pairs = [(curves[f"numbers of {title} | {row} | {x} | 0"], curves.get(f"numbers of {title} | {row} | {y} | 0")) for row in sorted(rows)]
        pairs = sorted(pair for pair in pairs if pair[1] is not None)
        wanted = sorted(zip(across, up, strict=True))
        assert len(pairs) == len(wanted)
        assert all(
            math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
            for pair, want in zip(pairs, wanted, strict=True)
            for one, other in zip(pair, want, strict=True)
        )


def test_the_texts_name_no_number_that_the_log_lacks(browser, report):
    browser.open(report)
    browser.run(OPENED)
    pattern = r"(?<![\w.])\d[\d,]*(?:\.\d+)?"
    said = {one.replace(",", "").rstrip(".") for one in re.findall(pattern, browser.run(TEXTS).replace(str(report.parent), ""))}
    logged = {one.rstrip(".") for one in re.findall(r"\d+(?:\.\d+)?", "".join(run_lines()))} | {"2", "6"}  # two workers; flags of the last start
    histogram = evaluation("test", 100, True, 960)["histogram"]
    uncertain = sum(one * other for one, other in zip(histogram["negative"], histogram["positive"], strict=True))
    stamp = {"01", "16", "40"}  # the time of the first line
    assert said <= logged | OF_METHOD | stamp | {f"{uncertain / 2 / 720 / 240:.2g}"}, said - logged


@pytest.fixture(scope="module", params=[(400, True), (1600, False)], ids=["narrow and dark", "wide and light"])
def window(tmp_path_factory, request) -> Iterator[tuple[Page, int, bool]]:
    """Return a browser of its own with this width, and with these colours: the style sheet of dark ones sets nothing else."""
    with Page(tmp_path_factory.mktemp("profile"), request.param[0], 900, request.param[1]) as page:
        yield page, *request.param


def test_no_error_no_request_no_overflow(window, report, several):
    page, width, dark = window
    for path in (report, several):
        page.requests.clear()
        page.open(path)
        page.run(OPENED)
        page.run("['samples', 'seconds'].forEach((one) => document.querySelector(`[value=${one}]`).click())")
        inside, found = page.run("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert inside <= found <= width
        assert page.requests == [path.as_uri()] and page.errors == []
        back = page.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", back))) < 200) == dark
        drawn = page.run("[...document.querySelectorAll('[data-plot]')].every((one) => one.querySelector('canvas').width > 100)")
        assert drawn and page.run("document.querySelectorAll('[data-plot]').length") >= 8


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    """Return the report of three runs: one whole, one with hostile names, one that a signal stopped."""
    folder = tmp_path_factory.mktemp("several")
    write(folder / "a.json", run_lines())
    hostile = (
        "".join(run_lines(identity="ff" * 8)).replace("clicks", "</script><img src=x onerror=document.title=1>").replace("user", "<b>user</b><!--")
    )
    write(folder / "b.json", [hostile])
    stopped = [*run_lines(range(10, 71, 10), identity="ee" * 8)[:-4], line("FAULT", {"step": 70, "message": "SIGTERM", "stopped": True}, 1090.0)]
    write(folder / "c<script>.json", stopped)
    runs = [str(folder / name) for name in ("a.json", "b.json", "c<script>.json")]
    assert main([*runs, "-o", str(folder / "report.html")]) == 0
    return folder / "report.html"


def test_names_are_text(browser, tmp_path, several):
    write(
        tmp_path / "log.json", ["".join(run_lines()).replace("user", "<img src=x onerror=document.title=1>").replace("/data/clicks", "</script><b>x")]
    )
    assert main([str(tmp_path / "log.json"), "-o", str(tmp_path / "report.html")]) == 0
    for path in (tmp_path / "report.html", several):
        browser.errors.clear()
        browser.open(path)
        browser.run(OPENED)
        assert browser.run("document.querySelectorAll('img, main script, main b').length") == 0 and browser.errors == []
        assert browser.run("document.title") != "1" and "</script><" in browser.run("document.querySelector('main').textContent")


def test_the_page_of_several_runs(browser, several):
    browser.open(several)
    browser.run(OPENED)
    values = {place: float(value) for place, value, _ in browser.run(FIGURES)}
    assert [values[f"test split | {row} | AUC | 0"] for row in (0, 1)] == [evaluation("test", 100)["auc"]] * 2
    names = ["a.json", "b.json", "c<script>.json"]
    for row, step in enumerate(range(10, 101, 10)):
        for name in names[: 3 if step <= 70 else 2]:
            column = next(
                place for place in values if place.startswith(f"numbers of Training loss | {row} | ") and place.split(" | ")[2].endswith(name)
            )
            assert math.isclose(values[column], training(step)["loss"], rel_tol=1e-6)
    text = browser.run("document.querySelector('#what-differs').textContent")
    assert "dataset" in text and "train 12,800" not in text
    assert "Stopped at step 70 by a signal (SIGTERM)" in browser.run("document.querySelector('#outcome').textContent")


def test_keyboard_reads_and_zooms(browser, report):
    browser.open(report)
    browser.run("document.querySelector('[data-plot=loss] .chart').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    said = browser.run("document.querySelector('#said').textContent")
    assert said.startswith("step 20: training loss ") and float(said.rsplit(" ", 1)[1]) == pytest.approx(training(20)["loss"], rel=1e-5)
    hidden = "document.querySelector('[data-plot=loss] > button').hidden"
    assert browser.run(hidden)
    browser.press("+")
    assert not browser.run(hidden)
    browser.press("0")
    assert browser.run(hidden)


def test_switches_and_copies(browser, report):
    browser.open(report)
    browser.run(OPENED)
    browser.run("document.querySelector('[value=dark]').click()")
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    browser.run("document.querySelector('[data-plot=rates] .legend button').click()")
    assert browser.run("document.querySelector('[data-plot=rates] .legend button').getAttribute('aria-pressed')") == "false"
    # The clipboard needs a permission that a headless browser does not give; what would be copied is taken instead.
    browser.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    browser.run("document.querySelector('[data-plot=loss] details button').click()")
    rows = browser.run("window.copied").split("\n")
    assert rows[0] == "step\tsamples\tseconds\ttraining loss" and len(rows) == 11
    assert float(rows[1].split("\t")[3]) == pytest.approx(training(10)["loss"], rel=1e-6)


def test_nothing_that_axe_calls_serious(window, report, several):
    page = window[0]
    for path in (report, several):
        page.open(path)
        page.run(OPENED)
        page.run(f"{AXE.read_text()};0")
        found = page.run("axe.run().then((found) => found.violations.map((one) => [one.id, one.impact, one.nodes.length, one.nodes[0].html]))")
        assert [one for one in found if one[1] in ("serious", "critical")] == []


def test_a_page_says_which_command_comes_next(browser, tmp_path):
    """Without evaluations, rows and importance, the sections name the command to type."""
    lines = [
        line("PARAMETER", {"mode": "train", "save_checkpoint_path": "/models/a b"}, 1.0),
        line("RUN", about(), 1.0),
        line([0, 10], training(10), 2.0),
    ]
    write(tmp_path / "log.json", lines)
    assert main([str(tmp_path / "log.json"), "-o", str(tmp_path / "report.html")]) == 0
    browser.open(tmp_path / "report.html")
    commands = browser.run("[...document.querySelectorAll('pre')].map((one) => one.textContent)")
    for words in ("--mode eval --restore_checkpoint_path '/models/a b'", "--mode explain", "--mode predict", "--by user", "--mode export"):
        assert any(words in command and "--dataset_path /data/clicks" in command for command in commands), words
    outcome = browser.run("document.querySelector('#outcome').textContent")
    assert "without final figures" in outcome and "no evaluation" in outcome


def test_the_data_of_the_page_is_json(report):
    text = report.read_text()
    (inside,) = re.findall(r'<script type="application/json" id="plots-data">(.*?)</script>', text, re.S)
    assert json.loads(inside)["plots"] and "<" not in inside
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and len(text) < 200_000
