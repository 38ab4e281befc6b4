"""The report of one run: its sections in their order."""

from collections.abc import Sequence
from dataclasses import dataclass

from report.log.record import Record
from report.log.thinning import POINTS
from report.page.commands import mode_command
from report.page.curves import training_plots
from report.page.file import page
from report.page.history import next_steps, options, time_line
from report.page.html import Markup, section
from report.page.layout import importance, placement, tables
from report.page.outcome import first_screen, outcomes, status
from report.page.plots import Plot, plotted
from report.page.quality import quality
from report.page.row_sections import Rows, row_sections


@dataclass
class _Contents:
    """Sections by the text of their link, and the plots in them."""

    sections: list[tuple[str, Markup]]
    plots: list[Plot]

    def add(self, link: str, found: tuple[Markup, Sequence[Plot]] | Markup | None) -> None:
        """Add a section with or without plots; None adds nothing."""
        if found is None:
            return
        body, plots = found if isinstance(found, tuple) else (found, ())
        self.sections.append((link, body))
        self.plots += plots


def report_one(record: Record, rows: Rows, most: int = POINTS) -> str:
    """Return the page about a run.

    Args:
        record: the run.
        rows: the files that the sections about rows need.
        most: the most points of a curve.
    """
    found = _Contents([], [])
    found.add("Outcome", first_screen(record))
    of_section: dict[str, list[Plot]] = {}
    for heading, plot in training_plots(record, most):
        of_section.setdefault(heading, []).append(plot)
    for heading, plots in of_section.items():
        inside = plotted(plots)
        found.add(heading, (section(heading.lower().replace(" ", "-"), heading, inside), plots))
    summarised = next((outcome for outcome in outcomes(record) if outcome.figures.get("histogram") or outcome.figures.get("deciles")), None)
    found.add("Calibration and ranking", quality(summarised, mode_command(record, "eval")))
    for link, made in row_sections(record, rows):
        found.add(link, made)
    found.add("Importance", importance(record, mode_command(record, "explain")))
    found.add("Workers", placement(record))
    found.add("Tables", tables(record, most))
    found.add("Time line", time_line(record))
    found.add("Options", options(record))
    found.add("Next", next_steps(record))
    return page(f"Run {record.name}", status(record)[1], found.sections, found.plots)
