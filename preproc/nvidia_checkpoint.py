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
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.contract import stored_vocabulary
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.vocabularies import RECORD, kept_file, record
from utils.checkpoint.kept_files import KeptFiles
from utils.checkpoint.reading import newest
from utils.checkpoint.writing import Array, Part, save
from utils.distributed import World
from utils.encoding import transforms
from utils.errors import UserError, run_command
from utils.flags import Parser
from utils.options import CROSS

NAME = "preproc.nvidia_checkpoint"
_VARIABLE = re.compile(r"(bottom_mlp|top_mlp)(?:_layers)?/(\d+)/(kernel|bias)/\.ATTRIBUTES/VARIABLE_VALUE")
_CROSS_VARIABLE = re.compile(r"interact_op/cross_layers/(\d+)/_dense(_u|_v|)/(kernel|bias)/\.ATTRIBUTES/VARIABLE_VALUE")
_CROSS_PARTS = {"_u": "v", "_v": "u", "": "w"}  # their U is `[d, r]` and comes first, as our V does; W is a layer of full rank
_DENSE_FILE = re.compile(r"(bottom_mlp|top_mlp)_layer_(\d+)_(kernel|bias)(?:_part0)?\.npy")
_TABLE_FILE = re.compile(r"feature_(\d+)(_\d+)?(?:_part(\d+))?\.npy")
_OTHER_DATASET = "give the dataset of the training (--dataset_path, --feature_spec)"


@dataclass(frozen=True)
class Weight:
    """An array and where it was found, for messages."""

    place: str
    values: np.ndarray


@dataclass(frozen=True)
class Source:
    """What was found, opened: dense weights by our names (`bottom_mlp/0/kernel`), each feature's table in parts by rows.

    `order` is the order in which features enter the interaction; `bottom_first` says whether the bottom MLP's output stands
    before the dot products in the top MLP's input, or after them. `cross_layers`: so many in place of dot products.
    """

    dense: Mapping[str, Weight]
    tables: Sequence[Sequence[Weight]]
    order: Sequence[int]
    bottom_first: bool
    cross_layers: int = 0


def open_source(folder: Path, spec: FeatureSpec, dot_interaction: str | None) -> Source:
    """Find out which form a checkpoint has and open it; tables are mapped, not read. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"--nvidia_checkpoint {folder}: no such folder")
    if (folder / "dense").is_dir() or (folder / "sparse").is_dir():
        return _open_current(folder, spec, dot_interaction)
    dense = {"{}/{}/{}".format(*match.groups()): _load(path) for match, path in _matching(folder, _DENSE_FILE)}
    if not dense:
        raise UserError(
            f"{folder}: no checkpoint of NVIDIA's DLRM or DCNv2: neither the folders dense and sparse nor bottom_mlp_layer_0_kernel.npy are there"
        )
    if dot_interaction is None:
        which = "custom_cuda (that application's default) or tensorflow"
        raise UserError(f"{folder}: an older checkpoint, which does not say its interaction; give --dot_interaction as in training: {which}")
    tables, order = _open_tables(folder, spec), range(len(spec.categorical))
    if any(match[2] for match, _ in _matching(folder, _TABLE_FILE)):  # before distributed embeddings, the largest table came first
        order = sorted(order, key=lambda i: -spec.cardinalities[i])
    return Source(dense, tables, order, dot_interaction == "custom_cuda")


def _open_current(folder: Path, spec: FeatureSpec, dot_interaction: str | None) -> Source:
    dense, sparse = (_config(folder / name / "config.json") for name in ("dense", "sparse"))
    interaction, numerical = dense.get("interaction"), dense.get("num_numerical_features")
    if interaction not in ("dot_custom_cuda", "dot_tensorflow", CROSS):
        raise UserError(f"{folder}/dense/config.json: interaction {interaction!r}, expected dot_custom_cuda, dot_tensorflow or {CROSS}")
    if dot_interaction and interaction != f"dot_{dot_interaction}":
        raise UserError(f"--dot_interaction {dot_interaction}: {folder}/dense/config.json says {interaction}; drop the flag")
    if numerical != len(spec.numerical):
        raise UserError(f"{folder}/dense/config.json: {numerical} numerical features, the dataset has {len(spec.numerical)}; {_OTHER_DATASET}")
    concatenated = sparse.get("concat_embedding") is True and sparse.get("categorical_cardinalities") == list(spec.cardinalities)
    tables = _open_tables(folder / "sparse", spec, sparse if concatenated else None)
    weights = _read_tensorflow(folder / "dense" / "dense")
    layers = len({name.split("/")[1] for name in weights if name.startswith("cross/")})
    expected = dense.get("num_cross_layers") if interaction == CROSS else 0
    if layers != expected or (interaction == CROSS and not layers):
        found = f"{folder}/dense/config.json: interaction {interaction} with {expected} cross layers, dense holds the weights of {layers}"
        raise UserError(f"{found}; expected the same number, and with {CROSS} at least 1")
    return Source(weights, tables, range(len(tables)), bottom_first=True, cross_layers=layers)


def _matching(folder: Path, pattern: re.Pattern) -> list[tuple[re.Match, Path]]:
    return [(match, path) for path in (folder.iterdir() if folder.is_dir() else ()) if (match := pattern.fullmatch(path.name))]


def _open_tables(folder: Path, spec: FeatureSpec, concatenated: Mapping[str, Any] | None = None) -> list[list[Weight]]:
    """Every feature's table as the parts that hold its rows. `concatenated`: the configuration by which feature_0 holds several."""
    files = _matching(folder, _TABLE_FILE)
    found = {(int(match[1]), int(match[3] or 0)): _load(path) for match, path in files}
    if len(found) < len(files):
        raise UserError(f"{folder}: {len(files)} files for {len(found)} tables or parts of tables: it holds more than one checkpoint")
    count = len(spec.cardinalities)
    if concatenated and found and sorted(found) == [(i, 0) for i in range(len(found))]:
        values, total = found[0, 0].values, sum(spec.cardinalities)
        sizes = 4 * values.shape[-1] * np.array(spec.cardinalities) if values.ndim else np.zeros(count)
        apart = [] if len(found) == 1 and values.shape[:1] == (total,) else _tables_apart(sizes, concatenated, folder)
        if len(apart) < count:
            return _concatenated([found[i, 0] for i in range(len(found))], apart, spec)
    if (last := max(found, default=(0, 0)))[0] >= count:
        raise UserError(f"{found[last].place}: one table too many, the dataset has {count} categorical features; {_OTHER_DATASET}")
    tables = []
    for i, feature in enumerate(spec.categorical):
        tables.append([weight for (number, _), weight in sorted(found.items()) if number == i])
        numbers = sorted(part for number, part in found if number == i)
        if not numbers or numbers != list(range(len(numbers))):
            what = f"has only the parts {numbers}" if numbers else f"is missing; expected {count} tables"
            raise UserError(f"{folder}: the table of feature {feature.name}, feature_{i}….npy, {what}")
    return tables


def _tables_apart(sizes: np.ndarray, config: Mapping[str, Any], folder: Path) -> list[int]:
    """Which tables --concat_embedding left on the CPU, each a file: the largest ones, from the first on that --cpu_offloading_threshold_gb forbids.

    A gigabyte is 2^30 bytes there, and 10^9 in later commits, which have --data_parallel_input. `sizes` are in bytes.
    """
    limit, gigabyte = config.get("cpu_offloading_threshold_gb"), 10**9 if "data_parallel_input" in config else 2**30
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise UserError(f"{folder}/config.json: cpu_offloading_threshold_gb is {limit!r}, expected a number")
    order = np.argsort(sizes, kind="stable")
    on_gpu = int(np.count_nonzero(np.cumsum(sizes[order]) <= limit * gigabyte))
    if 0 < on_gpu < len(sizes) and sizes[order[on_gpu - 1]] == sizes[order[on_gpu]]:  # theirs is no stable sort
        raise UserError(f"{folder}: --concat_embedding put some of several tables of {sizes[order[on_gpu]]} bytes apart; which is not known")
    return sorted(map(int, order[on_gpu:]))


def _concatenated(files: Sequence[Weight], apart: Sequence[int], spec: FeatureSpec) -> list[list[Weight]]:
    """Every feature's table, where the first file holds all but those `apart` one after another, and these have the other files."""
    together = [i for i in range(len(spec.cardinalities)) if i not in apart]
    expected = [sum(spec.cardinalities[i] for i in together), *(spec.cardinalities[i] for i in apart)]
    if (found := [len(file.values) if file.values.ndim else 0 for file in files]) != expected:
        by = f"by --concat_embedding for tables of {', '.join(map(str, spec.cardinalities))} rows"
        raise UserError(f"{files[0].place} and on: {found} rows, expected {expected} {by}; {_OTHER_DATASET}")
    tables, start = dict(zip(apart, files[1:], strict=True)), 0
    for i in together:
        tables[i] = Weight(files[0].place, files[0].values[start : start + spec.cardinalities[i]])
        start += spec.cardinalities[i]
    return [[tables[i]] for i in range(len(tables))]


def _config(path: Path) -> dict:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: {cause}; expected the folders dense and sparse of NVIDIA's DLRM or DCNv2, each with its config.json") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def _load(path: Path) -> Weight:
    try:
        return Weight(str(path), np.load(path, mmap_mode="r"))
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: not a whole NumPy file: {' '.join(str(error).split())}") from None


def _read_tensorflow(prefix: Path) -> dict[str, Weight]:
    """The dense weights of a TensorFlow checkpoint, by our names."""
    if not Path(f"{prefix}.index").is_file() or not list(prefix.parent.glob(f"{prefix.name}.data-*")):
        raise UserError(f"{prefix}.index or {prefix}.data-*: missing; expected a TensorFlow checkpoint of the dense layers")
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = {name: ours for name in sorted(reader.get_variable_to_shape_map()) if (ours := _our_name(name))}
        return {ours: Weight(f"{prefix}: {name}", np.asarray(reader.get_tensor(name))) for name, ours in names.items()}
    except (tf.errors.OpError, ValueError, RuntimeError, LookupError) as error:
        raise UserError(f"{prefix}.index: TensorFlow cannot read it: {' '.join(str(error).split())[:200]}") from None


def _our_name(variable: str) -> str | None:
    """`bottom_mlp_layers/0/kernel/…` -> `bottom_mlp/0/kernel`, `interact_op/cross_layers/0/_dense_u/kernel/…` -> `cross/0/v/kernel`."""
    if match := _VARIABLE.fullmatch(variable):
        return "{}/{}/{}".format(*match.groups())
    match = _CROSS_VARIABLE.fullmatch(variable)
    return match and f"cross/{match[1]}/{_CROSS_PARTS[match[2]]}/{match[3]}"


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


def _check_tables(tables: Sequence[Sequence[Weight]], spec: FeatureSpec) -> int:
    """Compare the tables with the dataset's cardinalities; returns D."""
    dim = next((part.values.shape[1] for parts in tables for part in parts if part.values.ndim == 2), 0)
    for feature, parts in zip(spec.categorical, tables, strict=True):
        for part in parts:
            if part.values.dtype != np.float32:
                raise UserError(f"{part.place}: {part.values.dtype}, expected float32")
            if part.values.shape[1:] != (dim,) or dim == 0:
                raise UserError(f"{part.place}: shape {list(part.values.shape)}, expected [rows, {dim or 'columns'}], the same width for all tables")
        rows, known = sum(len(part.values) for part in parts), f"feature {feature.name} has cardinality {feature.cardinality}"
        if rows != feature.cardinality:
            raise UserError(f"{parts[0].place}: {rows} rows, {known} in {spec.path}; {_OTHER_DATASET}")
    return dim


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
    numerical, dim, features, layers = len(spec.numerical), _check_tables(source.tables, spec), len(source.tables), source.cross_layers
    bottom = _check_mlp(source.dense, "bottom_mlp", {numerical, _padded(numerical)}, None if layers else dim, folder)
    width = bottom[-1] + (features * dim if layers else features * (features + 1) // 2)
    # The first CUDA kernel of the dot interaction padded by one.
    top = _check_mlp(source.dense, "top_mlp", {width, _padded(width)} | (set() if layers else {width + 1}), 1, folder)
    shape = {"embedding_dim": dim, "bottom_mlp_dims": bottom, "top_mlp_dims": top}
    if layers:
        rank = _check_cross(source.dense, layers, width, folder)
        shape |= {"interaction": CROSS, "num_cross_layers": layers, "cross_layer_projection_dim": rank}
    dense = {f"dense/{name}": weight.values for name, weight in source.dense.items()}
    # Other rows multiply padding, which is 0: they were never trained, and what they hold does not matter.
    rows = np.arange(width) if layers else top_rows(source.order, dim, source.bottom_first)
    for mlp, kept in (("bottom_mlp", np.arange(numerical)), ("top_mlp", rows)):
        dense[f"dense/{mlp}/0/kernel"] = dense[f"dense/{mlp}/0/kernel"][kept]
    tables = {feature.name: feature.cardinality for feature in spec.categorical}
    of_values = transforms.transforms_of(spec.metadata, spec.numerical, tables)
    metadata = {"config": shape | {"hash_indices": False, "max_table_size": None}}
    metadata |= {"model": {"name": "dcnv2"} | shape} if layers else {}
    return dense, metadata | {"features": {"numerical": list(spec.numerical), "categorical": tables}, transforms.NAME: of_values}


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
    dim = metadata["config"]["embedding_dim"]
    arrays = {name: Array(values.shape) for name, values in dense.items()}
    parts = [Part(name, lambda start, stop, values=values: values[start:stop]) for name, values in dense.items()]
    for feature, table in zip(spec.categorical, source.tables, strict=True):
        arrays[f"tables/{feature.name}/weights"] = Array((feature.cardinality, dim))
        parts.append(Part(f"tables/{feature.name}/weights", lambda start, stop, table=table: _rows(table, start, stop)))
    with contextlib.ExitStack() as opened:
        files = {kept_file(name): opened.enter_context(stored_vocabulary(spec, name).open("rb")) for name in metadata[RECORD]}
        folder = save(target, 0, arrays, parts, metadata, World(), files=KeptFiles(files))
    bottom, top = (",".join(map(str, metadata["config"][f"{mlp}_mlp_dims"])) for mlp in ("bottom", "top"))
    size = f"{len(source.tables)} tables of {dim} columns, {dim * sum(spec.cardinalities):,} parameters"
    cross = f"{source.cross_layers} cross layers of rank {metadata['config']['cross_layer_projection_dim']}, " if source.cross_layers else ""
    print(f"written: {folder}: {size}; bottom MLP {bottom}, {cross}top MLP {top}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
