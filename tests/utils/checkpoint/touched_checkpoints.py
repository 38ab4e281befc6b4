"""Checkpoints of small tables of which only the touched rows are stored."""

import numpy as np

from utils.checkpoint import touched_form
from utils.checkpoint.touched_form import bitmap_name
from utils.checkpoint.writing import Array, ArrayPart, Saving
from utils.distributed import World
from utils.initial_rows import Origin, Untouched

DIM = 6
SLOTS = {"momentum": 0.0, "accumulator": 0.1}


def origins(*lasts, initializer="uniform", name="user"):
    """Return the origins of a table that has grown to each of these numbers of rows."""
    firsts = (0, *lasts[:-1])
    return [Origin(first, last, name, last, DIM, 10 + first, initializer, 0.25) for first, last in zip(firsts, lasts, strict=True)]


def trained(where, numbers, kinds=("weights", "momentum", "accumulator")):
    """Return a table with its slots in memory, of which these rows were trained: by kind, `[V, D]` or, of one accumulator a row, `[V, 1]`."""
    found, rows = {}, where[-1].last
    for place, kind in enumerate(kinds):
        values = np.full((rows, 1 if kind == "accumulator" else DIM), SLOTS.get(kind), np.float32)
        if kind == "weights":
            Untouched(where)(values, 0)
        values[numbers] = np.random.default_rng(place).normal(size=(len(numbers), values.shape[1]))
        found[kind] = values
    return found


def bits_of(numbers, rows):
    marks = np.zeros(rows, np.uint8)
    marks[numbers] = 1
    return np.packbits(marks)


def write(path, where, numbers, table, name="user", step=None, **others):
    """Write a checkpoint of the rows `numbers`, ascending, of a table; with `step`, by a part for each so many columns."""
    arrays, parts = {other: Array(values.shape) for other, values in others.items()}, []
    for other, values in others.items():
        parts.append(ArrayPart(other, lambda start, stop, values=values: values[start:stop]))
    for kind, values in table.items():
        array, width = f"tables/{name}/{kind}", values.shape[1]
        arrays[array] = Array((len(numbers), width), step if width == DIM else None, rows=len(values))
        for first in range(0, width, step or width):
            columns = first, min(first + (step or width), width)
            stored = values[numbers, columns[0] : columns[1]]
            parts.append(ArrayPart(array, lambda start, stop, stored=stored: stored[start:stop], columns))
    described = {"origins": [origin.described() for origin in where], "slots": {slot: SLOTS[slot] for slot in table if slot != "weights"}}
    saving = Saving(path, 1, arrays, parts, {touched_form.TOUCHED_ROWS: {name: described}}, World())
    saving.put(bitmap_name(name), bits_of(numbers, where[-1].last))
    return saving.finish()
