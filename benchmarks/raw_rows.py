"""Score raw rows on a CPU: `score_raw` against `score` of encoded rows, and the encoding against Keras's lookup layers in one `tf.function`.

  python -m benchmarks.raw_rows
  python -m benchmarks.raw_rows --kinds log --batch_sizes 1,64

A log in the form of Criteo's goes through `preproc.criteo`, a CSV file of 20 columns of texts through `preproc.table`, and a model is trained on each
for a few steps. Every round draws new rows and measures all ways in turn, in one process, which gets the rows as Python lists. Both encodings must
give the same ids.
"""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from benchmarks.children import start
from benchmarks.options import Options, run
from benchmarks.raw_logs import names_of, write_log, write_table
from benchmarks.report import Report
from benchmarks.scratch import scratch
from benchmarks.serving import measured
from preproc.criteo.clicklog import LABEL
from utils.config.option import option
from utils.runtime import prepare_tensorflow

KINDS = ("log", "table")
RAW, ENCODED, OURS, KERAS = "score_raw", "score, of encoded rows", "score_raw's encoding", "Keras's lookup layers"
_ROW_BYTES = 2000  # of a row's texts, dataset and vocabularies, at most
_MISSING = -3  # of a number for Keras; the transform gives 0 for it


@dataclass(frozen=True)
class RawRowsOptions(Options):
    """Benchmark of raw rows."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "rows": 2000, "embedding_dim": 8, "seconds": 0.05, "batch_sizes": (1, 64)}

    kinds: tuple[str, ...] = option(KINDS, "kinds of rows: log, table")
    rows: int = option(100_000, "rows of each file, which the vocabularies are made from", unit="rows")
    embedding_dim: int = option(128, "columns of the tables", unit="columns")
    batch_sizes: tuple[int, ...] = option((1, 16, 64, 1024), "samples scored at once", unit="samples")
    seconds: float = option(0.5, "time for each figure of a round", unit="seconds")
    folder: str | None = option(None, "folder for temporary files; the default is the system's temporary folder")

    def __post_init__(self):
        super().__post_init__()
        if not self.kinds or set(self.kinds) - set(KINDS):
            raise ValueError(f"--kinds {','.join(self.kinds)}: expected one or more of {', '.join(KINDS)}")
        if not self.batch_sizes or min(self.batch_sizes) < 1 or max(self.batch_sizes) > self.rows:
            raise ValueError(f"--batch_sizes {','.join(map(str, self.batch_sizes))}: expected sizes from 1 to --rows {self.rows}")


def main(chosen: RawRowsOptions, report: Report) -> None:
    """Measure and print."""
    with scratch(chosen.folder, len(chosen.kinds) * chosen.rows * (_ROW_BYTES + 4 * 26 * chosen.embedding_dim), "datasets and checkpoints") as folder:
        for kind in chosen.kinds:
            _measure(chosen, report, kind, folder / kind)


def _measure(chosen: RawRowsOptions, report: Report, kind: str, folder: Path) -> None:
    rows = _trained(chosen, kind, folder)
    prepare_tensorflow()
    import dlrm
    from run.sample_columns import encoded_raw

    model = dlrm.load(folder / "checkpoint", mmap=True, cpu=True)
    raw, numerical = model.raw_inputs(), model.features.numerical
    keras = keras_encoder({name: _texts(path) for name, path in raw.vocabularies.items()}, numerical)
    seconds: dict[str, dict[str, list[float]]] = {}
    for number in range(chosen.num_rounds):
        for size in chosen.batch_sizes:
            requests = _requests(rows, raw.columns, size, number)
            encoded = [dict(zip(model.columns, (*numbers.T, *ids), strict=True)) for numbers, ids in map(keras, requests)]
            ours, theirs = cycle(requests), cycle(requests)
            known, alone = cycle(encoded), cycle(requests[::-1])
            ways: dict[str, Callable[[Any], Any]] = {
                OURS: lambda _, given=alone: encoded_raw(next(given), raw, model.features),
                RAW: lambda _, given=ours: model.score_raw(next(given)),
                ENCODED: lambda _, given=known: model.score(next(given)),
                KERAS: lambda _, given=theirs: keras(next(given)),
            }
            for name, way in ways.items():
                seconds.setdefault(name, {}).setdefault(str(size), []).append(measured(way, {}, chosen.seconds))
            _check_same(*encoded_raw(requests[0], raw, model.features), *keras(requests[0]))
    report.figures[kind] = {"seconds": seconds}
    columns = [f"batch {size:,}" for size in chosen.batch_sizes]
    lines = [(name, *(1e3 * statistics.median(values) for values in some.values())) for name, some in seconds.items()]
    report.table(f"{kind}, {len(numerical)} numbers and {len(raw.vocabularies)} texts a row: p50 latency, ms", ["", *columns], lines)


def _trained(chosen: RawRowsOptions, kind: str, folder: Path) -> pl.DataFrame:
    """Write the rows, a dataset of them, and a checkpoint of a model; return the rows, numbers as Int64 and all others as texts."""
    folder.mkdir()
    file, (numbers, texts) = folder / "rows", names_of(kind)
    (write_log if kind == "log" else write_table)(file, chosen.rows, 0)
    prepare = ["-m", "preproc.criteo"] if kind == "log" else ["-m", "preproc.table", "--label", LABEL]
    start(sys.executable, *prepare, "--train", file, "--test", file, "--dst", folder / "dataset", "--frequency_threshold", 1)
    size = ["--embedding_dim", chosen.embedding_dim, "--bottom_mlp_dims", f"512,256,{chosen.embedding_dim}"]
    steps = ["--cpu", "--batch_size", 64, "--valid_batch_size", 64, "--max_steps", 3, "--log_path", ""]
    start(sys.executable, "dlrm.py", "--dataset_path", folder / "dataset", *size, *steps, "--save_checkpoint_path", folder / "checkpoint")
    form = {"separator": "\t", "has_header": False, "new_columns": [LABEL, *numbers, *texts]} if kind == "log" else {}
    return pl.read_csv(file, infer_schema=False, **form).with_columns(pl.col(name).cast(pl.Int64) for name in numbers)


def _requests(rows: pl.DataFrame, columns: Sequence[str], size: int, seed: int) -> list[dict[str, list]]:
    """Draw requests of `size` rows, so many that few calls of a round get rows again: encoders keep the ids of texts that they saw before."""
    starts = np.random.default_rng((seed, size)).integers(0, len(rows) - size + 1, min(1024, max(16, (1 << 15) // size)))
    return [{name: rows[name][start : start + size].to_list() for name in columns} for start in starts.tolist()]


def _texts(vocabulary: Path) -> list[str]:
    """Return the texts of a vocabulary, in the order of their ids from 1 on."""
    values = pl.read_parquet(vocabulary, glob=False).sort("id")["value"]
    return values.to_list() if values.dtype == pl.String else [f"{value:08x}" for value in values]


def _check_same(numbers: np.ndarray, ids: Sequence[np.ndarray], their_numbers: np.ndarray, their_ids: np.ndarray) -> None:
    if not np.array_equal(np.stack(ids), their_ids) or not np.allclose(numbers.astype(np.float32), their_numbers, rtol=2e-3):
        raise RuntimeError(f"{OURS} and {KERAS} give different ids or numbers")


# The peer -------------------------------------------------------------------------------------------------------------------


def keras_encoder(vocabularies: Mapping[str, list[str]], numerical: Sequence[str]) -> Callable[[Mapping[str, list]], tuple[np.ndarray, np.ndarray]]:
    """Return an encoder of rows, given by column: numbers `[B, M]` by log(x + 3), and ids `[F, B]` by a `StringLookup` for each vocabulary."""
    import keras
    import tensorflow as tf

    lookups = {name: keras.layers.StringLookup(vocabulary=texts) for name, texts in vocabularies.items()}

    @tf.function(input_signature=[tf.TensorSpec([len(lookups), None], tf.string), tf.TensorSpec([len(numerical), None], tf.float32)])
    def encode(texts: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids = tf.stack([lookup(column) for lookup, column in zip(lookups.values(), tf.unstack(texts), strict=True)])
        return tf.transpose(tf.where(numbers >= -2, tf.math.log(tf.maximum(numbers, -2) + 3), 0)), ids

    def encoded(given: Mapping[str, list]) -> tuple[np.ndarray, np.ndarray]:
        count = len(next(iter(given.values())))
        numbers = np.array([[_MISSING if value is None else value for value in given[name]] for name in numerical], np.float32)
        texts = [[text or "" for text in given[name]] for name in lookups]
        found = encode(tf.constant(texts), tf.constant(numbers.reshape(len(numerical), count)))
        return found[0].numpy(), found[1].numpy()

    return encoded


if __name__ == "__main__":
    sys.exit(run(RawRowsOptions, main, __doc__))
