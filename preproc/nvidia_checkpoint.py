"""Conversion of a checkpoint of NVIDIA's DLRM, DCNv2 or Wide & Deep for TensorFlow 2 to a checkpoint of this project, with the same scores.

    python -m preproc.nvidia_checkpoint --nvidia_checkpoint NVIDIA --dataset_path DATASET --save_checkpoint_path CHECKPOINT

Four forms are known, by the application that wrote them:

    DLRM_and_DCNv2                      dense/config.json, dense/dense.* (TensorFlow's format), sparse/config.json, sparse/feature_0.npy
    DLRM with distributed embeddings    bottom_mlp_layer_0_kernel.npy, feature_0.npy, or both with _part0
    DLRM before that                    bottom_mlp_layer_0_kernel_part0.npy, feature_0_1000_part0.npy (of 1000 rows; 2^20 rows a part)
    WideAndDeep                         checkpoint, ckpt-1.index, ckpt-1.data-* (TensorFlow's format), in the folder checkpoint of its --model_dir

The first form holds DLRM or DCNv2. The next two hold DLRM and do not record its dot interaction, so --dot_interaction has to
give it. Only weights are converted: no optimizer slots, no position in the data. Everything is checked before anything is
written.
"""

import contextlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataloading.contract import stored_vocabulary
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import NUMERICAL_DTYPE
from dataloading.vocabularies import record
from dataloading.vocabulary import RECORD, kept_file
from preproc.nvidia.checks import check_cross, check_lookups, check_mlp, check_tables, padded
from preproc.nvidia.source import Source, Weight, open_source
from preproc.nvidia.wide_and_deep import WideAndDeepSource, folder_of, open_wide_and_deep
from utils.checkpoint.kept_files import KeptFiles
from utils.checkpoint.reading import newest
from utils.checkpoint.writing import Array, ArrayPart, save
from utils.commands import run_command
from utils.config.flags import Parser
from utils.config.options import CROSS, SUM, WIDE_AND_DEEP
from utils.distributed import World
from utils.encoding import transforms
from utils.errors import UserError

NAME = "preproc.nvidia_checkpoint"
WIDE = "wide"  # suffix of the names of the linear part's tables


def top_rows(order: Sequence[int], dim: int, bottom_first: bool) -> np.ndarray:
    """Return, for each input of our top MLP, its row in NVIDIA's first kernel, `[D + P]`.

    Our inputs are the bottom MLP's output, then the pairs (1,0), (2,0), (2,1), ….
    """
    place = np.zeros(len(order) + 1, np.int64)  # the index of our vector i among theirs; the bottom MLP's output is first in both
    place[np.asarray(order) + 1] = np.arange(1, len(order) + 1)
    one, other = (place[index] for index in np.tril_indices(len(place), -1))
    high, low = np.maximum(one, other), np.minimum(one, other)
    pairs, bottom = high * (high - 1) // 2 + low, np.arange(dim)
    return np.concatenate([bottom, dim + pairs] if bottom_first else [len(pairs) + bottom, pairs])


class Converted(NamedTuple):
    """The content of our checkpoint.

    Attributes:
        dense: dense weights, by their names in it.
        tables: each table in parts by rows, by their names in it.
        metadata: metadata for its manifest.
        size: description of its size, for a message.
    """

    dense: dict[str, np.ndarray]
    tables: dict[str, Sequence[Weight]]
    metadata: dict[str, Any]
    size: str


def convert(source: Source, spec: FeatureSpec, folder: Path) -> Converted:
    """Check all weights of a DLRM or DCNv2, and convert them to our order. Raises UserError."""
    check_lookups(spec)
    numerical, layers = len(spec.numerical), source.cross_layers
    widths = check_tables(source.tables, spec, one_width=not layers)
    bottom = check_mlp(source.dense, "bottom_mlp", {numerical, padded(numerical)}, None if layers else widths[0], folder)
    inputs = bottom[-1] + (sum(widths) if layers else len(widths) * (len(widths) + 1) // 2)
    # The first version of the CUDA kernel of the dot interaction padded its output by one.
    top = check_mlp(source.dense, "top_mlp", {inputs, padded(inputs)} | (set() if layers else {inputs + 1}), 1, folder)
    shape = {"embedding_dim": _one_or_each(widths), "bottom_mlp_dims": bottom, "top_mlp_dims": top}
    cross = ""
    if layers:
        rank = check_cross(source.dense, layers, inputs, folder)
        shape |= {"interaction": CROSS, "num_cross_layers": layers, "cross_layer_projection_dim": rank}
        cross = f"{layers} cross layers of {f'rank {rank}' if rank else 'full rank'}, "
    dense = {f"dense/{name}": weight.values for name, weight in source.dense.items()}
    # The other rows are multiplied by padding, which is 0: they were never trained and can be dropped.
    rows = np.arange(inputs) if layers else top_rows(source.order, widths[0], source.bottom_first)
    for mlp, kept in (("bottom_mlp", np.arange(numerical)), ("top_mlp", rows)):
        dense[f"dense/{mlp}/0/kernel"] = dense[f"dense/{mlp}/0/kernel"][kept]
    metadata = _metadata(spec, shape) | ({"model": {"name": "dcnv2"} | shape} if layers else {})
    tables = {feature.name: table for feature, table in zip(spec.categorical, source.tables, strict=True)}
    return Converted(dense, tables, metadata, f"{_size(spec, widths)}; bottom MLP {_shown(bottom)}, {cross}top MLP {_shown(top)}")


def convert_wide_and_deep(source: WideAndDeepSource, spec: FeatureSpec) -> Converted:
    """Convert a Wide & Deep, whose weights were checked when it was opened."""
    shape = {"interaction": WIDE_AND_DEEP, "embedding_dim": _one_or_each(source.widths), "top_mlp_dims": source.layers, "wide_pooling": SUM}
    tables: dict[str, Sequence[Weight]] = {}
    for feature, deep, wide in zip(spec.categorical, source.deep, source.wide, strict=True):
        tables |= {feature.name: [deep], f"{feature.name}_{WIDE}": [wide]}
    metadata = _metadata(spec, shape) | {"model": {"name": WIDE_AND_DEEP} | shape}
    size = f"{_size(spec, source.widths)}; a wide table of 1 column for each; deep MLP {_shown(source.layers)}; trained for {source.step:,} steps"
    return Converted({f"dense/{name}": values for name, values in source.dense.items()}, tables, metadata, size)


def _metadata(spec: FeatureSpec, shape: Mapping[str, Any]) -> dict[str, Any]:
    tables = {feature.name: feature.cardinality for feature in spec.categorical}
    features = {"numerical": list(spec.numerical), "categorical": tables}
    usual = {"hotness": 1, "pooling": SUM}
    facts = {feature.name: {name: value for name in usual if (value := getattr(feature, name)) != usual[name]} for feature in spec.categorical}
    if particulars := {name: found for name, found in facts.items() if found}:
        features["particulars"] = particulars
    if spec.numerical_dtype != NUMERICAL_DTYPE:
        features["numerical_dtype"] = spec.numerical_dtype
    metadata = {"config": {**shape, "hash_indices": False, "max_table_size": None}, "features": features}
    return metadata | {transforms.NAME: transforms.transforms_of(spec.metadata, spec.numerical, tables)}


def _one_or_each(widths: tuple[int, ...]) -> int | tuple[int, ...]:
    return widths[0] if len(set(widths)) == 1 else widths


def _shown(widths: Sequence[int]) -> str:
    return ",".join(map(str, widths))


def _size(spec: FeatureSpec, widths: Sequence[int]) -> str:
    parameters = sum(rows * dim for rows, dim in zip(spec.cardinalities, widths, strict=True))
    return f"{len(widths)} tables of {_shown(list(dict.fromkeys(widths)))} columns, {parameters:,} parameters"


def rows_of_parts(parts: Sequence[Weight], start: int, stop: int) -> np.ndarray:
    """Return rows `start` to `stop` of a table whose parts follow each other."""
    firsts = itertools.accumulate((len(part.values) for part in parts), initial=0)
    return np.concatenate([part.values[max(start - first, 0) : max(stop - first, 0)] for first, part in zip(firsts, parts, strict=False)])


def _converted(folder: Path, spec: FeatureSpec, dot_interaction: str | None) -> Converted:
    if (place := folder_of(folder)) is None:
        return convert(open_source(folder, spec, dot_interaction), spec, folder)
    if dot_interaction:
        raise UserError(f"--dot_interaction {dot_interaction}: {place} holds a Wide & Deep, which has no dot interaction; drop the flag")
    source = open_wide_and_deep(place, spec)
    for note in source.notes:
        print(f"{NAME}: {note}", file=sys.stderr)
    return convert_wide_and_deep(source, spec)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, convert the checkpoint and write it; return the exit code."""
    parser = Parser(prog=NAME, description=__doc__)
    parser.add_argument("--nvidia_checkpoint", type=Path, required=True, metavar="FOLDER", help="NVIDIA's --save_checkpoint_path or --model_dir")
    parser.add_argument("--dataset_path", type=Path, required=True, metavar="FOLDER", help="dataset that the model was trained on")
    parser.add_argument(
        "--feature_spec", default=DEFAULT_FILE_NAME, metavar="FILE", help="name of the dataset's specification (default: %(default)s)"
    )
    parser.add_argument(
        "--save_checkpoint_path", type=Path, required=True, metavar="FOLDER", help="folder for the new checkpoint; must not hold one yet"
    )
    parser.add_argument("--dot_interaction", choices=("custom_cuda", "tensorflow"), help="interaction of an older checkpoint, as in training")
    flags = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    spec, target = FeatureSpec.from_yaml(flags.dataset_path / flags.feature_spec), flags.save_checkpoint_path.absolute()
    found = _converted(flags.nvidia_checkpoint, spec, flags.dot_interaction)
    metadata = found.metadata | {RECORD: record(spec)}
    if newest(target) is not None:
        raise UserError(f"--save_checkpoint_path {target}: already holds a checkpoint; choose another folder")
    arrays = {name: Array(values.shape) for name, values in found.dense.items()}
    parts = [ArrayPart(name, lambda start, stop, values=values: values[start:stop]) for name, values in found.dense.items()]
    for table, rows in found.tables.items():
        name = f"tables/{table}/weights"
        arrays[name] = Array((sum(len(part.values) for part in rows), rows[0].values.shape[1]))
        parts.append(ArrayPart(name, lambda start, stop, rows=rows: rows_of_parts(rows, start, stop)))
    with contextlib.ExitStack() as opened:
        files = {kept_file(name): opened.enter_context(stored_vocabulary(spec, name).open("rb")) for name in metadata[RECORD]}
        folder = save(target, 0, arrays, parts, metadata, World(), files=KeptFiles(files))
    print(f"written: {folder}: {found.size}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
