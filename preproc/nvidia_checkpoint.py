"""A checkpoint of NVIDIA's DLRM or DCNv2 for TensorFlow 2 to one of ours, with the same scores.

    python -m preproc.nvidia_checkpoint --nvidia_checkpoint NVIDIA --dataset_path DATASET --save_checkpoint_path CHECKPOINT

Three forms are known, by the application that wrote them:

    DLRM_and_DCNv2                      dense/config.json, dense/dense.* (TensorFlow's format), sparse/config.json, sparse/feature_0.npy
    DLRM with distributed embeddings    bottom_mlp_layer_0_kernel.npy, feature_0.npy, or both with _part0
    DLRM before that                    bottom_mlp_layer_0_kernel_part0.npy, feature_0_1000_part0.npy (of 1000 rows; 2^20 rows a part)

The first holds either model. The last two are DLRM's and do not say which dot interaction they were trained with, so
--dot_interaction has to. Weights only: no optimizer slots, no position in the data. Everything is checked before anything
is written.
"""

import contextlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dataloading.contract import stored_vocabulary
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import NUMERICAL_DTYPE, SUM
from dataloading.vocabularies import RECORD, kept_file, record
from preproc.nvidia_source import OTHER_DATASET, Source, Weight, open_source
from utils.checkpoint.kept_files import KeptFiles
from utils.checkpoint.reading import newest
from utils.checkpoint.writing import Array, Part, save
from utils.distributed import World
from utils.encoding import transforms
from utils.errors import UserError, run_command
from utils.flags import Parser
from utils.options import CROSS

NAME = "preproc.nvidia_checkpoint"


def _check_cross(dense: Mapping[str, Weight], layers: int, width: int, folder: Path) -> int:
    """Check kernels `[width, r]` and `[r, width]` and biases `[width]` of cross layers; returns r, the same for all."""
    first = dense.get("cross/0/v/kernel")
    rank = first.values.shape[-1] if first and first.values.ndim else 0
    for i in range(layers):
        if full := dense.get(f"cross/{i}/w/kernel"):
            raise UserError(f"{full.place}: a cross layer of full rank; expected two kernels, of --cross_layer_projection_dim columns and rows")
        for name, shape in {"v/kernel": [width, rank], "u/kernel": [rank, width], "u/bias": [width]}.items():
            if (weight := dense.get(f"cross/{i}/{name}")) is None:
                raise UserError(f"{folder}: cross layer {i} lacks one of its kernels or its bias; expected a checkpoint of NVIDIA's DCNv2")
            if weight.values.dtype != np.float32:
                raise UserError(f"{weight.place}: {weight.values.dtype}, expected float32")
            if list(weight.values.shape) != shape:
                widths = f"{width} is the bottom MLP's output and all embeddings side by side"
                raise UserError(f"{weight.place}: shape {list(weight.values.shape)}, expected {shape}; {widths}")
    return rank


def _padded(inputs: int) -> int:
    """To a multiple of 8, as NVIDIA pads the inputs of both MLPs."""
    return -(-inputs // 8) * 8


def _check_mlp(dense: Mapping[str, Weight], mlp: str, allowed: set[int], outputs: int | None, folder: Path) -> tuple[int, ...]:
    """Check kernels `[in, out]` and biases `[out]` of an MLP, the first with one of `allowed` rows; returns the layers' widths."""
    layers, dims = 1 + max((int(name.split("/")[1]) for name in dense if name.startswith(f"{mlp}/")), default=0), []
    for i, kind in itertools.product(range(layers), ("kernel", "bias")):
        if (weight := dense.get(f"{mlp}/{i}/{kind}")) is None:
            raise UserError(f"{folder}: layer {i} of the {mlp} has no {kind}; expected a checkpoint of NVIDIA's DLRM")
        shape = list(weight.values.shape)
        if weight.values.dtype != np.float32:
            raise UserError(f"{weight.place}: {weight.values.dtype}, expected float32")
        if kind == "bias" and shape != dims[-1:]:
            raise UserError(f"{weight.place}: shape {shape}, expected {dims[-1:]}, one for each column of the kernel")
        if kind == "kernel":
            if len(shape) != 2 or shape[0] not in allowed:
                rows = " or ".join(map(str, sorted(allowed)))
                raise UserError(f"{weight.place}: shape {shape}, expected {rows} rows for the dataset's features or the layer before")
            dims, allowed = [*dims, shape[1]], {shape[1]}
    if outputs is not None and dims[-1] != outputs:
        raise UserError(f"{dense[f'{mlp}/{layers - 1}/kernel'].place}: {dims[-1]} columns, expected {outputs} in the last layer of the {mlp}")
    return tuple(dims)


def _check_tables(tables: Sequence[Sequence[Weight]], spec: FeatureSpec, one_width: bool) -> tuple[int, ...]:
    """Compare the tables with the dataset's cardinalities; returns D_f of each feature."""
    widths: list[int] = []
    for feature, parts in zip(spec.categorical, tables, strict=True):
        first = parts[0].values.shape[1] if parts[0].values.ndim == 2 else 0
        dim = widths[0] if one_width and widths else first
        for part in parts:
            if part.values.dtype != np.float32:
                raise UserError(f"{part.place}: {part.values.dtype}, expected float32")
            if part.values.shape[1:] != (dim,) or dim == 0:
                same = ", the same width for all tables" if one_width else ""
                raise UserError(f"{part.place}: shape {list(part.values.shape)}, expected [rows, {dim or 'columns'}]{same}")
        rows, known = sum(len(part.values) for part in parts), f"feature {feature.name} has cardinality {feature.cardinality}"
        if rows != feature.cardinality:
            raise UserError(f"{parts[0].place}: {rows} rows, {known} in {spec.path}; {OTHER_DATASET}")
        if feature.embedding_dim not in (None, dim):
            raise UserError(f"{parts[0].place}: {dim} columns, feature {feature.name} has embedding_dim {feature.embedding_dim} in {spec.path}")
        widths.append(dim)
    return tuple(widths)


def _check_lookups(spec: FeatureSpec) -> None:
    """Raise UserError where the dataset wants of a feature what NVIDIA's models do not do: each has a table of its own and adds its vectors up."""
    for feature in spec.categorical:
        if feature.table_name != feature.name:
            raise UserError(f"{spec.path}: feature {feature.name} is looked up in table {feature.table}; NVIDIA's features have one each, drop table")
        if feature.pooling != SUM:
            raise UserError(f"{spec.path}: feature {feature.name} has pooling {feature.pooling}; NVIDIA's models add vectors up, drop pooling")


def top_rows(order: Sequence[int], dim: int, bottom_first: bool) -> np.ndarray:
    """For each input of our top MLP, `[D + P]`: bottom output, then pairs (1,0), (2,0), (2,1), … — its row of NVIDIA's first kernel."""
    place = np.zeros(len(order) + 1, np.int64)  # where our vector i stands among theirs; the bottom MLP's output is first in both
    place[np.asarray(order) + 1] = np.arange(1, len(order) + 1)
    one, other = (place[index] for index in np.tril_indices(len(place), -1))
    high, low = np.maximum(one, other), np.minimum(one, other)
    pairs, bottom = high * (high - 1) // 2 + low, np.arange(dim)
    return np.concatenate([bottom, dim + pairs] if bottom_first else [len(pairs) + bottom, pairs])


def convert(source: Source, spec: FeatureSpec, folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    """Check everything; returns our dense weights by their names in a checkpoint, and what its manifest keeps. Raises UserError."""
    _check_lookups(spec)
    numerical, layers = len(spec.numerical), source.cross_layers
    widths = _check_tables(source.tables, spec, one_width=not layers)
    bottom = _check_mlp(source.dense, "bottom_mlp", {numerical, _padded(numerical)}, None if layers else widths[0], folder)
    inputs = bottom[-1] + (sum(widths) if layers else len(widths) * (len(widths) + 1) // 2)
    # The first CUDA kernel of the dot interaction padded by one.
    top = _check_mlp(source.dense, "top_mlp", {inputs, _padded(inputs)} | (set() if layers else {inputs + 1}), 1, folder)
    shape = {"embedding_dim": widths[0] if len(set(widths)) == 1 else widths, "bottom_mlp_dims": bottom, "top_mlp_dims": top}
    if layers:
        rank = _check_cross(source.dense, layers, inputs, folder)
        shape |= {"interaction": CROSS, "num_cross_layers": layers, "cross_layer_projection_dim": rank}
    dense = {f"dense/{name}": weight.values for name, weight in source.dense.items()}
    # Other rows multiply padding, which is 0: they were never trained, and what they hold does not matter.
    rows = np.arange(inputs) if layers else top_rows(source.order, widths[0], source.bottom_first)
    for mlp, kept in (("bottom_mlp", np.arange(numerical)), ("top_mlp", rows)):
        dense[f"dense/{mlp}/0/kernel"] = dense[f"dense/{mlp}/0/kernel"][kept]
    tables = {feature.name: feature.cardinality for feature in spec.categorical}
    features = {"numerical": list(spec.numerical), "categorical": tables}
    if lists := {feature.name: {"hotness": feature.hotness} for feature in spec.categorical if feature.hotness > 1}:
        features["particulars"] = lists
    if spec.numerical_dtype != NUMERICAL_DTYPE:
        features["numerical_dtype"] = spec.numerical_dtype
    metadata = {"config": shape | {"hash_indices": False, "max_table_size": None}, "features": features}
    metadata |= {"model": {"name": "dcnv2"} | shape} if layers else {}
    return dense, metadata | {transforms.NAME: transforms.transforms_of(spec.metadata, spec.numerical, tables)}


def _rows(parts: Sequence[Weight], start: int, stop: int) -> np.ndarray:
    firsts = itertools.accumulate((len(part.values) for part in parts), initial=0)
    return np.concatenate([part.values[max(start - first, 0) : max(stop - first, 0)] for first, part in zip(firsts, parts, strict=False)])


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, open, check, write; returns the exit code."""
    parser = Parser(prog=NAME, description=__doc__)
    parser.add_argument("--nvidia_checkpoint", type=Path, required=True, metavar="FOLDER", help="what NVIDIA's --save_checkpoint_path named")
    parser.add_argument("--dataset_path", type=Path, required=True, metavar="FOLDER", help="the dataset it was trained on")
    parser.add_argument("--feature_spec", default=DEFAULT_FILE_NAME, metavar="FILE", help="name of its specification (default: %(default)s)")
    parser.add_argument("--save_checkpoint_path", type=Path, required=True, metavar="FOLDER", help="folder for our checkpoint; holds none yet")
    parser.add_argument("--dot_interaction", choices=("custom_cuda", "tensorflow"), help="what an older checkpoint was trained with")
    flags = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    spec, target = FeatureSpec.from_yaml(flags.dataset_path / flags.feature_spec), flags.save_checkpoint_path.absolute()
    source = open_source(flags.nvidia_checkpoint, spec, flags.dot_interaction)
    dense, metadata = convert(source, spec, flags.nvidia_checkpoint)
    metadata[RECORD] = record(spec)
    if newest(target) is not None:
        raise UserError(f"--save_checkpoint_path {target}: holds a checkpoint; name another folder")
    widths = [table[0].values.shape[1] for table in source.tables]
    arrays = {name: Array(values.shape) for name, values in dense.items()}
    parts = [Part(name, lambda start, stop, values=values: values[start:stop]) for name, values in dense.items()]
    for feature, table, dim in zip(spec.categorical, source.tables, widths, strict=True):
        arrays[f"tables/{feature.name}/weights"] = Array((feature.cardinality, dim))
        parts.append(Part(f"tables/{feature.name}/weights", lambda start, stop, table=table: _rows(table, start, stop)))
    with contextlib.ExitStack() as opened:
        files = {kept_file(name): opened.enter_context(stored_vocabulary(spec, name).open("rb")) for name in metadata[RECORD]}
        folder = save(target, 0, arrays, parts, metadata, World(), files=KeptFiles(files))
    bottom, top = (",".join(map(str, metadata["config"][f"{mlp}_mlp_dims"])) for mlp in ("bottom", "top"))
    parameters = sum(rows * dim for rows, dim in zip(spec.cardinalities, widths, strict=True))
    size = f"{len(widths)} tables of {','.join(map(str, dict.fromkeys(widths)))} columns, {parameters:,} parameters"
    cross = f"{source.cross_layers} cross layers of rank {metadata['config']['cross_layer_projection_dim']}, " if source.cross_layers else ""
    print(f"written: {folder}: {size}; bottom MLP {bottom}, {cross}top MLP {top}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
