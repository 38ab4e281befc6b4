"""Sections that need rows, not only the log: metrics by value of a feature, and the data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from report.commands import PREDICTIONS, dataset_of, mode_command, report_command
from report.history import feature_of
from report.html import Markup, code, joined, note, section
from report.plots import Plot
from report.record import Record


@dataclass(frozen=True)
class Rows:
    """The files with rows that the command was given.

    Attributes:
        predictions: predictions files, one for each run.
        dataset: the folder of the dataset; empty for none.
        by: features to show metrics by.
    """

    predictions: Sequence[str] = ()
    dataset: str = ""
    by: Sequence[str] = ()


def row_sections(record: Record, rows: Rows) -> Iterator[tuple[str, tuple[Markup, list[Plot]]]]:
    """Yield the link of each section, the section, and its plots."""
    yield "By value", _by_value(record, rows)
    yield "Data", _data(record, rows)


def _by_value(record: Record, rows: Rows) -> tuple[Markup, list[Plot]]:
    parts = [
        note("Metrics by the values of a feature need predictions and the dataset. Write the predictions, then make the report with both:"),
        code(mode_command(record, "predict", "--predictions_path", PREDICTIONS)),
        code(report_command(record, "--predictions", PREDICTIONS, "--dataset_path", dataset_of(record), "--by", feature_of(record))),
    ]
    return section("by-value", "Metrics by value of a feature", *parts), []


def _data(record: Record, rows: Rows) -> tuple[Markup, list[Plot]]:
    parts = [
        note("Click rates, missing, unknown and out-of-range values, and drift between splits need the dataset:"),
        code(report_command(record, "--dataset_path", dataset_of(record))),
    ]
    return section("data", "The data", joined(parts)), []
