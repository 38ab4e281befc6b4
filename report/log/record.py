"""The record of a run: what its log says, by the rules of reading, with curves of bounded size."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from report.log.lines import Line, parsed, raw_lines
from report.log.runs import ONE_STEP, STEP_STEPS, RunSpan, Stretch, whole
from report.log.thinning import Curve, Point, as_number, finite

MOST_EVENTS = 1000
# Keys of evaluations in NVIDIA's logs, and their names here.
_NAMES = {"auc_val": "auc", "auc_roc": "auc", "loss_val": "log_loss", "streaming_map_val": "map_at_12", "binary_accuracy_val": "binary_accuracy"}
_SPLITS = {**dict.fromkeys(("auc", "test_loss", *_NAMES), "test"), "valid_auc": "valid", "valid_loss": "valid"}
Data = Mapping[str, Any]


@dataclass(frozen=True)
class Event:
    """Something that happened at a time: a start, a checkpoint, an evaluation, a fault, the end.

    Attributes:
        kind: "start", "resume", "checkpoint", "fault", "stopped" or "end".
        seconds: the time since the run's first line, pauses between its processes included.
        step: the step, None where the log does not tell.
        text: a description.
    """

    kind: str
    seconds: float
    step: int | None
    text: str


@dataclass
class Record:
    """A run as its log tells it.

    Attributes:
        span: its place in the file.
        name: the name in reports.
        parameters: the flags of the last start.
        about: the data of the last line "RUN", empty in older logs.
        began: the timestamp of the first line, in seconds.
        training: curves of training lines by key.
        metrics: curves of evaluations by split and key.
        summaries: the last line "EVALUATION" of each split; one marked final takes precedence.
        highest: the line "EVALUATION" of each split that has the highest AUC.
        tables: the data of the last line "TABLES".
        touched: curves of the share of rows touched, by table.
        norms: curves of the tables' norms.
        importance: the data of the line "IMPORTANCE".
        events: starts, checkpoints, faults and the end.
        events_left_out: checkpoints without an event, beyond `MOST_EVENTS`.
        final: the figures of the last line; None where the log ends without them.
        fault: the data of the line "FAULT" of the last process.
        last_step: the last step that the log tells of.
        cut: lines that were cut or cannot be parsed.
        seconds: the time that its processes ran, in seconds.
    """

    span: RunSpan
    name: str
    parameters: Data = field(default_factory=dict)
    about: Data = field(default_factory=dict)
    began: float = 0.0
    training: dict[str, Curve] = field(default_factory=dict)
    metrics: dict[tuple[str, str], Curve] = field(default_factory=dict)
    summaries: dict[str, Data] = field(default_factory=dict)
    highest: dict[str, Data] = field(default_factory=dict)
    tables: Data = field(default_factory=dict)
    touched: dict[str, Curve] = field(default_factory=dict)
    norms: dict[str, Curve] = field(default_factory=dict)
    importance: Data = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    events_left_out: int = 0
    final: Data | None = None
    fault: Data | None = None
    last_step: int | None = None
    cut: int = 0
    seconds: float = 0.0

    @property
    def mode(self) -> str:
        """The mode of the run."""
        return str(self.about.get("mode") or self.parameters.get("mode") or "train")


def read_record(span: RunSpan, name: str) -> Record:
    """Read the lines of a run. Raises UserError where the file cannot be read any more."""
    record = Record(span, name, began=span.stretches[0].began)
    reader = _Reader(record)
    for number, stretch in enumerate(span.stretches):
        reader.start(stretch, number)
        for line in _lines(span, stretch, record):
            reader.take(line)
        reader.end()
    return record


def _lines(span: RunSpan, stretch: Stretch, record: Record) -> Iterator[Line]:
    for raw in raw_lines(span.path, stretch.start, stretch.end):
        record.cut += not raw.whole
        line = parsed(raw.text)
        if line is not None:
            yield line
        elif b'"METADATA"' not in raw.text[:400]:
            record.cut += 1


class _Reader:
    """A reader of one run's lines, from the first to the last."""

    def __init__(self, record: Record):
        self._record = record
        self._stretch, self._form = record.span.stretches[0], ""
        self._before, self._from, self._last = 0.0, 0.0, 0.0  # seconds of earlier processes; this process's first and last timestamp
        self._samples: float | None = None

    def start(self, stretch: Stretch, number: int) -> None:
        """Begin with a process's lines."""
        self._stretch, self._form = stretch, stretch.form()
        self._from = self._last = stretch.began
        record = self._record
        record.parameters, record.about = stretch.parameters or record.parameters, stretch.about or record.about
        record.final = record.fault = None
        step = stretch.resumed_step
        if number == 0 and step is None:
            self._event("start", 0, "the run began")
        else:
            step = step if step is not None else (stretch.first_step or 1) - 1
            self._event("resume", step, f"resumed from step {step:,}")
            record.last_step = step

    def end(self) -> None:
        """End with a process's lines."""
        self._before += max(0.0, self._last - self._from)
        self._record.seconds = self._before

    def take(self, line: Line) -> None:
        """Take a line."""
        self._from = self._from or line.seconds
        self._record.began = self._record.began or self._from
        self._last = max(self._last, line.seconds)
        if not line.name:
            self._figures(line)
        elif line.name in _TAKERS and self._counts(whole(line.data.get("step"))):
            _TAKERS[line.name](self, line)

    def _counts(self, step: int | None) -> bool:
        """Return whether a step's line counts, or a later process trained the step again."""
        return step is None or self._stretch.until is None or step <= self._stretch.until

    def _event(self, kind: str, step: int | None, text: str) -> None:
        record = self._record
        if len(record.events) >= MOST_EVENTS and kind == "checkpoint":
            record.events_left_out += 1
        else:
            record.events.append(Event(kind, max(0.0, self._last - record.began), step, text))

    def _point(self, step: int, value: float) -> Point:
        return Point(step, max(0.0, self._before + self._last - self._from), self._samples, value)

    def _add(self, curve: Curve, step: int, value: Any) -> None:
        number = as_number(value)
        if (found := finite(number)) is not None:
            curve.add(self._point(step, found))
        elif number is None or isinstance(number, float):
            curve.add_undefined(step)

    def _figures(self, line: Line) -> None:
        """Take a line of a step, or the final figures."""
        record, numbers = self._record, line.numbers
        if not numbers:
            record.final = {**(record.final or {}), **{key: as_number(value) for key, value in line.data.items()}}
            self._event("end", record.last_step, "the run ended")
            return
        step = numbers[0] if len(numbers) == 1 or self._form == STEP_STEPS else numbers[1]
        if "batch_samplesps" in line.data and len(numbers) == 2 and self._form != ONE_STEP and numbers[0] == 1 and len(line.data) == 1:
            step = numbers[1]
        if not self._counts(step) or (len(numbers) == 1 and record.mode != "train"):  # a published form counts batches in --mode eval
            return
        record.last_step = max(step, record.last_step or 0)
        if "loss" not in line.data:
            split = next((_SPLITS[key] for key in line.data if key in _SPLITS), None)
            if split is not None:
                self._evaluation(split, step, line.data)
                return
        samples = finite(line.data.get("samples"))
        if samples is None and (batch := finite(record.about.get("batch_size") or record.parameters.get("batch_size"))):
            samples = step * batch  # older logs: the padding of an epoch's last batch counts
        self._samples = samples
        for key, value in line.data.items():
            if key != "samples":
                self._add(record.training.setdefault(key, Curve()), step, value)

    def _evaluation(self, split: str, step: int, data: Data) -> None:
        """Take an evaluation's line as it has always been."""
        for key, value in data.items():
            plain = key.removeprefix(f"{split}_")
            plain = "log_loss" if plain == "loss" else _NAMES.get(plain, plain)
            if plain not in ("samples", "groups", "groups_with_positive"):
                self._add(self._record.metrics.setdefault((split, plain), Curve()), step, value)

    def _summary(self, line: Line) -> None:
        """Take a line EVALUATION."""
        data, step = line.data, whole(line.data.get("step")) or 0
        split = str(data.get("split"))
        kept = self._record.summaries.get(split)
        if kept is None or data.get("final") or not kept.get("final"):
            self._record.summaries[split] = data
        if split not in self._record.highest or (finite(data.get("auc")) or 0.0) > (finite(self._record.highest[split].get("auc")) or 0.0):
            self._record.highest[split] = data
        if data.get("final") and (kept := self._record.metrics.get((split, "auc"))) and kept.last and kept.last.step > step:
            return  # of the best weights, tested at the end: not a later point of the curve
        for key in ("auc", "auc_variance", "log_loss", "normalized_entropy", "calibration", "log_loss_variance"):
            if key in data:
                self._add(self._record.metrics.setdefault((split, key), Curve()), step, data[key])

    def _tables(self, line: Line) -> None:
        self._record.tables = {**self._record.tables, **line.data}
        step = whole(line.data.get("step"))
        for key, curves in (("touched", self._record.touched), ("norms", self._record.norms)):
            for table, value in (line.data.get(key) or {}).items():
                if step is not None:
                    self._add(curves.setdefault(str(table), Curve()), step, value)

    def _checkpoint(self, line: Line) -> None:
        data = line.data
        best = " (the best so far)" if data.get("best") else ""
        seconds = finite(data.get("seconds"))
        took = f", written in {seconds:.3g} s" if seconds is not None else ""
        self._event("checkpoint", whole(data.get("step")), f"checkpoint{best}{took}: {data.get('folder')}")

    def _fault(self, line: Line) -> None:
        self._record.fault = line.data
        kind = "stopped" if line.data.get("stopped") else "fault"
        self._event(kind, whole(line.data.get("step")) or self._record.last_step, str(line.data.get("message")))

    def _importance(self, line: Line) -> None:
        self._record.importance = line.data


_TAKERS = {
    "EVALUATION": _Reader._summary,
    "TABLES": _Reader._tables,
    "CHECKPOINT": _Reader._checkpoint,
    "FAULT": _Reader._fault,
    "IMPORTANCE": _Reader._importance,
}
