"""The shapes of a log's lines: entries of another shape, from another program or a damaged file, are left out before anything reads them."""

from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which NaN and infinity are, too."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_bool(value: Any) -> bool:
    """Return whether a value is true or false."""
    return isinstance(value, bool)


def none_or(shape: Shape) -> Shape:
    """Return the shape of a value that may be null."""
    return lambda value: value is None or shape(value)


def any_of(*shapes: Shape) -> Shape:
    """Return the shape of a value that has one of the shapes."""
    return lambda value: any(shape(value) for shape in shapes)


def list_of(*shapes: Shape) -> Shape:
    """Return the shape of a list of values of one shape; with several shapes, of a list with one value of each."""
    if len(shapes) == 1:
        return lambda value: isinstance(value, list) and all(map(shapes[0], value))
    return lambda value: isinstance(value, list) and len(value) == len(shapes) and all(shape(one) for shape, one in zip(shapes, value, strict=True))


def map_of(shape: Shape) -> Shape:
    """Return the shape of an object whose values have one shape."""
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def object_of(**shapes: Shape) -> Shape:
    """Return the shape of an object with these entries, and perhaps others."""
    return lambda value: isinstance(value, dict) and all(key in value and shape(value[key]) for key, shape in shapes.items())


_NUMBER = none_or(is_number)
_TEXT = none_or(is_text)
_THREE = list_of(_NUMBER, _NUMBER, _NUMBER)
_COUNTS = list_of(is_number)
_RUN = {
    **dict.fromkeys(("id", "program", "mode", "device", "dtype", "operations", "processor", "restored", "restored_run", "model", "dataset"), _TEXT),
    **dict.fromkeys(("step_form", "chosen_by", "bits"), _TEXT),
    **dict.fromkeys(("resumed_step", "resumed_epoch", "workers", "steps", "steps_per_epoch", "batch_size"), none_or(is_whole)),
    "samples": map_of(is_whole),
    "fingerprints": map_of(_TEXT),
    "parameters": map_of(is_whole),
    "numerical": list_of(is_text),
    "replicated": list_of(is_text),
    "tables": list_of(object_of(name=is_text, rows=is_whole, dim=is_whole, bytes=is_number)),
    "features": list_of(object_of(name=is_text, table=is_text)),
    "placement": list_of(
        object_of(
            worker=is_whole, bytes=is_number, tables=list_of(list_of(is_text, is_whole, is_whole)), ids_per_step=_NUMBER, sent_bytes_per_step=_NUMBER
        )
    ),
}
_EVALUATION = {
    **dict.fromkeys(("auc", "auc_variance", "log_loss", "log_loss_variance", "normalized_entropy", "calibration"), _NUMBER),
    **dict.fromkeys(("samples", "positives", "epoch", "step"), none_or(is_whole)),
    "split": is_text,
    "final": is_bool,
    "deciles": list_of(any_of(list_of(*(is_number,) * 2, *(_NUMBER,) * 3), list_of(*(is_number,) * 2, *(_NUMBER,) * 4))),
    "histogram": object_of(low=_NUMBER, high=_NUMBER, negative=_COUNTS, positive=_COUNTS),
}
_IMPORTANCE = {
    **dict.fromkeys(("samples", "repeats"), is_whole),
    **dict.fromkeys(("auc", "log_loss"), _NUMBER),
    "split": is_text,
    "features": list_of(object_of(name=is_text, columns=list_of(is_text), auc_lost=_THREE, log_loss_lost=_THREE)),
    "copies": list_of(list_of(is_text, is_text, is_number)),
}
_SHAPES: Mapping[str, Mapping[str, Shape]] = {
    "PARAMETER": {},
    "RUN": _RUN,
    "EVALUATION": _EVALUATION,
    "IMPORTANCE": _IMPORTANCE,
    "TABLES": {
        "step": is_whole,
        "touched": map_of(_NUMBER),
        "norms": map_of(_NUMBER),
        "memory_gib": list_of(_NUMBER),
        "touched_since": none_or(is_whole),
    },
    "CHECKPOINT": {"step": is_whole, "folder": is_text, "seconds": _NUMBER, "waited_seconds": _NUMBER, "best": is_bool},
    "FAULT": {"step": none_or(is_whole), "message": is_text, "stopped": is_bool},
}


def fitting(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a line that have the shape of their name, or a name that has no shape.

    Args:
        name: the text that the line has as its step; empty for the figures of a step.
        data: its entries.
    """
    shapes = _SHAPES.get(name, {})
    return {key: value for key, value in data.items() if key not in shapes or shapes[key](value)}
