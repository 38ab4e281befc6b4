"""The client's CSV files of raw rows, compared with Python's csv module."""

import pytest

from serving.connection import Input
from serving.raw_file import RawFile
from tests.helpers.folders import write
from tests.preproc.reading.drawn_csv import by_csv, drawn
from utils.csv_rows import DOUBLE
from utils.errors import UserError


def test_drawn_files_are_read_as_by_the_csv_module(tmp_path):
    good = 0
    for seed in range(200):
        text, _, _ = drawn(seed, ",")
        rows, line = by_csv(text, ",", DOUBLE)
        path, width = write(tmp_path / "rows.csv", text.encode()), text.split("\n")[0].count(",") + 1
        inputs = [Input(f"c{i}", "BYTES", 1) for i in range(width)]
        if line is None and rows:
            file = RawFile(str(path), inputs, None)
            columns = file.inputs(0, file.num_samples)
            found = [tuple(columns[one.name][row, 0].decode() for one in inputs) for row in range(file.num_samples)]
            assert found == rows, f"seed {seed}: {text!r}"
            good += 1
        elif line is not None:
            with pytest.raises(UserError, match=rf", line {line}: "):
                RawFile(str(path), inputs, None)
    assert good > 50
