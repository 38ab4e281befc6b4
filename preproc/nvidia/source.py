"""Opening of checkpoints of NVIDIA's DLRM and DCNv2: dense weights by our names, tables by feature. `nvidia_checkpoint` lists the three forms."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.feature_spec import FeatureSpec
from utils.config.options import CROSS
from utils.errors import UserError

OTHER_DATASET = "give the dataset that it was trained on (--dataset_path, --feature_spec)"
_VARIABLE = re.compile(r"(bottom_mlp|top_mlp)(?:_layers)?/(\d+)/(kernel|bias)/\.ATTRIBUTES/VARIABLE_VALUE")
_CROSS_VARIABLE = re.compile(r"interact_op/cross_layers/(\d+)/_dense(_u|_v|)/(kernel|bias)/\.ATTRIBUTES/VARIABLE_VALUE")
_CROSS_PARTS = {"_u": "v", "_v": "u", "": "w"}  # their U is `[d, r]` and comes first, as our V does; W is a layer of full rank
_DENSE_FILE = re.compile(r"(bottom_mlp|top_mlp)_layer_(\d+)_(kernel|bias)(?:_part0)?\.npy")
_TABLE_FILE = re.compile(r"feature_(\d+)(_\d+)?(?:_part(\d+))?\.npy")


@dataclass(frozen=True)
class Weight:
    """An array and its origin, for messages."""

    place: str
    values: np.ndarray


@dataclass(frozen=True)
class Source:
    """An opened checkpoint: dense weights by our names (`bottom_mlp/0/kernel`), each feature's table in parts by rows.

    `order` is the order in which features enter the interaction; `bottom_first` says whether the bottom MLP's output precedes
    the dot products in the top MLP's input, or follows them. `cross_layers` is the number of cross layers, which replace the
    dot products; 0 for none.
    """

    dense: Mapping[str, Weight]
    tables: Sequence[Sequence[Weight]]
    order: Sequence[int]
    bottom_first: bool
    cross_layers: int = 0


def open_source(folder: Path, spec: FeatureSpec, dot_interaction: str | None) -> Source:
    """Detect the form of a checkpoint and open it; tables are memory-mapped, not read. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"--nvidia_checkpoint {folder}: no such folder")
    if (folder / "dense").is_dir() or (folder / "sparse").is_dir():
        return _open_current(folder, spec, dot_interaction)
    dense = {"{}/{}/{}".format(*match.groups()): _load(path) for match, path in _matching(folder, _DENSE_FILE)}
    if not dense:
        raise UserError(
            f"{folder}: holds no checkpoint of NVIDIA's models; expected the folders dense and sparse or a file bottom_mlp_layer_0_kernel.npy (DLRM, "
            "DCNv2), or a file ckpt-N.index (Wide & Deep)"
        )
    if dot_interaction is None:
        which = "custom_cuda (that application's default) or tensorflow"
        raise UserError(f"{folder}: an older checkpoint, which does not record its interaction; give --dot_interaction as in training: {which}")
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
        raise UserError(f"{folder}/dense/config.json: {numerical} numerical features, but the dataset has {len(spec.numerical)}; {OTHER_DATASET}")
    concatenated = sparse.get("concat_embedding") is True and sparse.get("categorical_cardinalities") == list(spec.cardinalities)
    tables = _open_tables(folder / "sparse", spec, sparse if concatenated else None)
    weights = read_tensorflow(folder / "dense" / "dense", "of the dense layers", _our_name)
    layers = len({name.split("/")[1] for name in weights if name.startswith("cross/")})
    expected = dense.get("num_cross_layers") if interaction == CROSS else 0
    if layers != expected or (interaction == CROSS and not layers):
        found = f"{folder}/dense/config.json: interaction {interaction} with {expected} cross layers, but dense holds the weights of {layers}"
        raise UserError(f"{found}; expected the same number, and with {CROSS} at least 1")
    return Source(weights, tables, range(len(tables)), bottom_first=True, cross_layers=layers)


def _matching(folder: Path, pattern: re.Pattern) -> list[tuple[re.Match, Path]]:
    return [(match, path) for path in (folder.iterdir() if folder.is_dir() else ()) if (match := pattern.fullmatch(path.name))]


def _open_tables(folder: Path, spec: FeatureSpec, concatenated: Mapping[str, Any] | None = None) -> list[list[Weight]]:
    """Open every feature's table as the parts that hold its rows. `concatenated` is the configuration if feature_0 may hold several tables."""
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
        raise UserError(f"{found[last].place}: one table too many, since the dataset has {count} categorical features; {OTHER_DATASET}")
    tables = []
    for i, feature in enumerate(spec.categorical):
        tables.append([weight for (number, _), weight in sorted(found.items()) if number == i])
        numbers = sorted(part for number, part in found if number == i)
        if not numbers or numbers != list(range(len(numbers))):
            what = f"has only the parts {numbers}" if numbers else f"is missing; expected {count} tables"
            raise UserError(f"{folder}: the table of feature {feature.name}, feature_{i}….npy, {what}")
    return tables


def _tables_apart(sizes: np.ndarray, config: Mapping[str, Any], folder: Path) -> list[int]:
    """Return the tables that --concat_embedding left on the CPU, each in its own file.

    They are the largest ones: in rising order of size, all from the first on with which the sum exceeds --cpu_offloading_threshold_gb. A gigabyte
    is 2^30 bytes there, and 10^9 in later commits, which have --data_parallel_input. `sizes` are in bytes.
    """
    limit, gigabyte = config.get("cpu_offloading_threshold_gb"), 10**9 if "data_parallel_input" in config else 2**30
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise UserError(f"{folder}/config.json: cpu_offloading_threshold_gb is {limit!r}, expected a number")
    order = np.argsort(sizes, kind="stable")
    on_gpu = int(np.count_nonzero(np.cumsum(sizes[order]) <= limit * gigabyte))
    if 0 < on_gpu < len(sizes) and sizes[order[on_gpu - 1]] == sizes[order[on_gpu]]:  # their sort is not stable: the order of equal sizes is unknown
        raise UserError(
            f"{folder}: --concat_embedding left some of several tables of {sizes[order[on_gpu]]} bytes on the CPU; the checkpoint does not say which"
        )
    return sorted(map(int, order[on_gpu:]))


def _concatenated(files: Sequence[Weight], apart: Sequence[int], spec: FeatureSpec) -> list[list[Weight]]:
    """Return every feature's table if the first file holds all tables, one after another, but those `apart`, which are in the other files."""
    together = [i for i in range(len(spec.cardinalities)) if i not in apart]
    expected = [sum(spec.cardinalities[i] for i in together), *(spec.cardinalities[i] for i in apart)]
    if (found := [len(file.values) if file.values.ndim else 0 for file in files]) != expected:
        by = f"by --concat_embedding for tables of {', '.join(map(str, spec.cardinalities))} rows"
        raise UserError(f"{files[0].place} and the files after it: {found} rows, expected {expected} {by}; {OTHER_DATASET}")
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
        raise UserError(f"{path}: not a complete NumPy file: {' '.join(str(error).split())}") from None


def read_tensorflow(prefix: Path, what: str, our_name: Callable[[str], str | None]) -> dict[str, Weight]:
    """Read the weights of a TensorFlow checkpoint, by our names; those for which `our_name` returns None are not read. Raises UserError.

    `what` says in errors what the checkpoint should hold.
    """
    if not Path(f"{prefix}.index").is_file() or not list(prefix.parent.glob(f"{prefix.name}.data-*")):
        raise UserError(f"{prefix}.index or {prefix}.data-*: missing; expected a TensorFlow checkpoint {what}")
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = {name: ours for name in sorted(reader.get_variable_to_shape_map()) if (ours := our_name(name))}
        return {ours: Weight(f"{prefix}: {name}", np.asarray(reader.get_tensor(name))) for name, ours in names.items()}
    except (tf.errors.OpError, ValueError, RuntimeError, LookupError) as error:
        raise UserError(f"{prefix}.index: TensorFlow cannot read it: {' '.join(str(error).split())[:200]}") from None


def _our_name(variable: str) -> str | None:
    """Translate the name of a variable to ours; None if it is no weight.

    `bottom_mlp_layers/0/kernel/…` -> `bottom_mlp/0/kernel`, `interact_op/cross_layers/0/_dense_u/kernel/…` -> `cross/0/v/kernel`.
    """
    if match := _VARIABLE.fullmatch(variable):
        return "{}/{}/{}".format(*match.groups())
    match = _CROSS_VARIABLE.fullmatch(variable)
    return match and f"cross/{match[1]}/{_CROSS_PARTS[match[2]]}/{match[3]}"
