"""Checks of the weights of NVIDIA's models against a dataset: shapes, dtypes, and lookups that those models support."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.features import SUM
from preproc.nvidia.source import OTHER_DATASET, Weight
from utils.errors import UserError


def check_cross(dense: Mapping[str, Weight], layers: int, width: int, folder: Path) -> int:
    """Check the kernels and biases of cross layers; return r, which is the same for all.

    The kernels are `[width, r]` and `[r, width]` or, of full rank (r is 0), one `[width, width]`; the bias is `[width]`.
    """
    first = dense.get("cross/0/v/kernel")
    rank = first.values.shape[-1] if first and first.values.ndim else 0
    full = "cross/0/w/kernel" in dense
    expected = {"w/kernel": [width, width], "w/bias": [width]} if full else {"v/kernel": [width, rank], "u/kernel": [rank, width], "u/bias": [width]}
    for i in range(layers):
        other = f"cross/{i}/{'v' if full else 'w'}/kernel"
        if other in dense:
            raise UserError(f"{dense[other].place}: cross layers of full rank beside others of low rank; expected one kind")
        for name, shape in expected.items():
            if (weight := dense.get(f"cross/{i}/{name}")) is None:
                raise UserError(f"{folder}: cross layer {i} lacks one of its kernels or its bias; expected a checkpoint of NVIDIA's DCNv2")
            if weight.values.dtype != np.float32:
                raise UserError(f"{weight.place}: {weight.values.dtype}, expected float32")
            if list(weight.values.shape) != shape:
                widths = f"{width} is the bottom MLP's output and all embeddings side by side"
                raise UserError(f"{weight.place}: shape {list(weight.values.shape)}, expected {shape}; {widths}")
    return 0 if full else rank


def padded(inputs: int) -> int:
    """Round up to a multiple of 8, as NVIDIA pads the inputs of both MLPs."""
    return -(-inputs // 8) * 8


def check_mlp(dense: Mapping[str, Weight], mlp: str, allowed: set[int], outputs: int | None, folder: Path) -> tuple[int, ...]:
    """Check kernels `[in, out]` and biases `[out]` of an MLP; return the layers' widths.

    `allowed` are the possible numbers of rows of the first kernel, `outputs` is the width of the last layer, None for any.
    """
    model = "Wide & Deep" if mlp == "deep" else "DLRM"
    layers, dims = 1 + max((int(name.split("/")[1]) for name in dense if name.startswith(f"{mlp}/")), default=0), []
    for i, kind in itertools.product(range(layers), ("kernel", "bias")):
        if (weight := dense.get(f"{mlp}/{i}/{kind}")) is None:
            raise UserError(f"{folder}: layer {i} of the {mlp} has no {kind}; expected a checkpoint of NVIDIA's {model}")
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


def check_tables(tables: Sequence[Sequence[Weight]], spec: FeatureSpec, one_width: bool) -> tuple[int, ...]:
    """Compare the tables with the dataset's cardinalities; return D_f of each feature."""
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
            raise UserError(f"{parts[0].place}: {rows} rows, but {known} in {spec.path}; {OTHER_DATASET}")
        if feature.embedding_dim not in (None, dim):
            known = f"feature {feature.name} has embedding_dim {feature.embedding_dim} in {spec.path}"
            raise UserError(f"{parts[0].place}: {dim} columns, but {known}; write {dim} there (the data need no change)")
        widths.append(dim)
    return tuple(widths)


def check_lookups(spec: FeatureSpec, means: bool = False) -> None:
    """Raise UserError where the dataset needs a lookup that NVIDIA's models do not support: in them each feature has its own table.

    DLRM and DCNv2 sum a feature's vectors; the deep part of Wide & Deep may average them (`means`), according to its --combiner.
    """
    for feature in spec.categorical:
        if feature.table_name != feature.name:
            raise UserError(
                f"{spec.path}: feature {feature.name} uses the table {feature.table}, but each feature of NVIDIA's models has its own; remove table"
            )
        if feature.pooling != SUM and not means:
            raise UserError(
                f"{spec.path}: feature {feature.name} has pooling {feature.pooling}, but NVIDIA's DLRM and DCNv2 sum vectors; remove pooling"
            )
