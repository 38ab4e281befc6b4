"""The C++ scorer (`ops/scorer.h`): a whole model from ids to logits, without TensorFlow.

`ops/build` compiles it. Where it is not built, or with `DLRM_NATIVE_OPS=0` in the environment, `native_scorer_library` returns None.
"""

import ctypes
import functools
import os
import re
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from model.embedding.table import MEAN
from model.native import scorer_path
from model.scored_layers import DenseLayers
from model.shapes import InteractionShape
from utils.checkpoint.chunks import Chunks
from utils.config.options import CROSS, DOT, FM, ModelConfig
from utils.config.serving import BFLOAT16, FLOAT16, FLOAT32, INT8
from utils.errors import UserError

_KINDS = {FLOAT32: 0, BFLOAT16: 1, FLOAT16: 2, INT8: 3}  # RowKind of ops/scorer.h
_FOLDED = ("gamma", "beta", "moving_mean", "moving_variance")
_NO_MEMORY = -2  # a return code of dlrm_scorer_score; -1 is success, 0 or more the position of an id that is out of range


class Stored(Protocol):
    """A table `[V, D_f]` in memory, or one of which only some rows are stored (`partial`)."""

    shape: tuple[int, ...]

    def chunks(self) -> Chunks:
        """Return the chunks that hold the table; they are valid as long as this object lives. Not called where `partial` is true."""

    # Where `partial` is true for it, or for the other table of a feature with a linear weight: rows(numbers), which returns rows by their numbers,
    # `[n] -> [n, D_f]` float32.


@dataclass(frozen=True)
class StoredFeature:
    """A categorical feature and the table that it is looked up in."""

    name: str
    table: Stored
    hotness: int
    pooling: str
    weights: bool = False

    @property
    def columns(self) -> int:
        """The numbers of a sample in the ids: the ids, then the bits of their float32 weights if they have any."""
        return 2 * self.hotness if self.weights else self.hotness


class _Feature(ctypes.Structure):
    _fields_ = (
        ("chunks", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "width", "chunk_rows", "chunk_width")),
        *((name, ctypes.c_int32) for name in ("kind", "hotness", "mean", "weighted")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("kernel", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        ("relu", ctypes.c_int32),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        ("numerical", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("features", "bottom", "cross", "top", "interaction", "full_rank", "parallel", "linear", "scaled")),
        *((name, ctypes.c_int32 * 2) for name in ("gate", "gate_features", "stream")),
        ("heads", ctypes.c_int32),
        ("gated_by", ctypes.c_void_p),
        ("bfloat16", ctypes.c_int32),
    )


class NativeScorer:
    """Scores samples by a model whose tables lie in memory, memory-mapped ones for instance. Thread-safe; concurrent calls do not block each other.

    A sample's logit is bit-identical for every batch it comes in and every number of threads; the last bits differ from TensorFlow's.

    Args:
        library: the library of `native_scorer_library`.
        num_numerical: M.
        features: the features in the model's order, those of a linear part included; their tables are referenced, not copied.
        layers: the dense layers; their weights are copied.
        interaction: the interaction of the features.
        precision: FLOAT32; or BFLOAT16, in which matrices and what they multiply are rounded, and the products are summed in float32. The layer of
            the logit, a gate's last one, vectors and their interaction stay float32.
        threads: threads for one call with many samples, including the caller's; None for as many as the process may use.

    Attributes:
        precision: as given.

    Raises:
        ValueError: another precision.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        num_numerical: int,
        features: Sequence[StoredFeature],
        layers: DenseLayers,
        interaction: InteractionShape,
        precision: str = FLOAT32,
        threads: int | None = None,
    ):
        if precision not in (FLOAT32, BFLOAT16):
            raise ValueError(f"precision: expected {FLOAT32} or {BFLOAT16}, received {precision!r}")
        self.precision = precision
        features = [*features, *features] if layers.linear_alone else features
        count = len(features) // 2 if layers.linear is not None else len(features)
        self._num_numerical, self._features = num_numerical, tuple(features[:count])
        self._num_ids = sum(feature.columns for feature in self._features)
        described, self._kept = _features(features)
        stacked, weights = _layers(layers)
        kind = {DOT: 0, CROSS: 2, FM: 3}.get(interaction.kind, 1)
        counts = count, len(layers.bottom), len(layers.cross), len(layers.top)
        parts = layers.linear is not None, layers.scaled is not None
        streams = [(len(one.gate), len(one.gate_features), len(one.layers)) for one in layers.streams] or [(0, 0, 0)] * 2
        gated_by = np.array([place for one in layers.streams for place in one.gate_features], np.int32)
        of_streams = (
            *((ctypes.c_int32 * 2)(*both) for both in zip(*streams, strict=True)),
            len(layers.heads),
            gated_by.ctypes.data,
            precision == BFLOAT16,
        )
        shape = _Shape(num_numerical, *counts, kind, interaction.projection == 0, interaction.parallel, *parts, *of_streams)
        self.handle = library.dlrm_scorer_new(ctypes.byref(shape), described, stacked, threads or len(os.sched_getaffinity(0)))
        del weights  # the library has copied them; until here they had to stay alive
        if not self.handle:
            raise MemoryError("the scorer's weights")
        self._score, self._score_rows = library.dlrm_scorer_score, library.dlrm_scorer_score_rows
        of_feature = [features[place::count] for place in range(count)]  # with that of the linear part, if there is one
        self._partial = [any(map(_is_partial, some)) for some in of_feature]
        self._any_partial = any(self._partial)
        self._tables = [one.table for one in features]
        weakref.finalize(self, library.dlrm_scorer_delete, self.handle).atexit = False  # at exit the process ends the scorer's threads itself

    def logits_of(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return logits `[B]` float32 for numericals `[B, M]` float32 and ids `[B, K]` int32.

        The h ids of a feature stand side by side, followed by the bits of their weights if they have any; −1 in a list means no id.

        Raises:
            MemoryError: the scorer has not enough memory for the samples.
            ValueError: an input has a wrong shape, or an id is not in its table.
        """
        numerical, ids = np.ascontiguousarray(numerical, np.float32), np.ascontiguousarray(ids, np.int32)
        count = len(ids)
        if numerical.shape != (count, self._num_numerical) or ids.shape != (count, self._num_ids):
            expected = f"[{count}, {self._num_numerical}] and [{count}, {self._num_ids}]"
            raise ValueError(f"numericals {list(numerical.shape)} and ids {list(ids.shape)}: expected {expected}")
        logits = np.empty(count, np.float32)
        if self._any_partial:
            bad = self._by_rows(numerical, ids, logits)
        else:
            bad = self._score(self.handle, count, _address(numerical), _address(ids), _address(logits))
        if bad == _NO_MEMORY:
            raise MemoryError(f"{count:,} samples")
        if bad >= 0:
            sample, place = divmod(bad, self._num_ids)
            feature = np.repeat(np.arange(len(self._features)), [one.columns for one in self._features])[place]
            found = self._features[feature]
            raise ValueError(f"feature {found.name}: id {ids[sample, place]} of sample {sample} is not in [0, {found.table.shape[0]})")
        return logits

    def _by_rows(self, numerical: np.ndarray, ids: np.ndarray, logits: np.ndarray) -> int:
        """Score with the rows of partial tables that the samples name; return what the library returns."""
        ids, start = ids.copy(), 0
        rows: list[np.ndarray | None] = [None] * len(self._tables)
        for place, (feature, partial) in enumerate(zip(self._features, self._partial, strict=True)):
            columns = slice(start, start + feature.hotness)
            start += feature.columns
            if not partial:
                continue
            numbers, found = np.unique(ids[:, columns], return_inverse=True)
            fewest = -1 if feature.hotness > 1 or feature.weights else 0
            outside = (numbers < fewest) | (numbers >= feature.table.shape[0])
            if outside.any():
                sample, column = np.argwhere(outside[found].reshape(len(ids), feature.hotness))[0]
                return sample * self._num_ids + columns.start + column
            absent = int(numbers[0] == -1) if len(numbers) else 0
            ids[:, columns] = found.reshape(len(ids), feature.hotness) - absent
            for table in range(place, len(self._tables), len(self._features)):
                rows[table] = np.ascontiguousarray(self._tables[table].rows(numbers[absent:]), np.float32)
        pointers = (ctypes.c_void_p * len(rows))(*(None if one is None else one.ctypes.data for one in rows))
        counts = (ctypes.c_int64 * len(rows))(*(0 if one is None else len(one) for one in rows))
        return self._score_rows(self.handle, len(ids), numerical.ctypes.data, ids.ctypes.data, pointers, counts, logits.ctypes.data)


def _address(array: np.ndarray) -> int:
    """Return where a contiguous array begins. `array.ctypes.data` takes seven times as long, which one sample feels."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array)) if array.size and array.flags.writeable else array.ctypes.data


def _features(features: Sequence[StoredFeature]) -> tuple[ctypes.Array, list]:
    """Convert features to their C++ structures; return these and the objects that their pointers refer to."""
    found, kept = (_Feature * len(features))(), []
    for one, feature in zip(found, features, strict=True):
        one.rows, one.width = one.chunk_rows, one.chunk_width = feature.table.shape
        one.hotness, one.mean, one.weighted = feature.hotness, feature.pooling == MEAN, feature.weights
        if _is_partial(feature):
            continue
        arrays, precision, scales = chunks = feature.table.chunks()
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        kept.append((pointers, chunks))
        one.chunks, one.scales = ctypes.addressof(pointers), None if scales is None else scales.ctypes.data
        (one.chunk_rows, one.chunk_width), one.kind = arrays[0].shape, _KINDS[precision]
    return found, kept


def _is_partial(feature: StoredFeature) -> bool:
    return getattr(feature.table, "partial", False)


def _layers(layers: DenseLayers) -> tuple[ctypes.Array, list]:
    found, kept = (_Layer * len(layers.given))(), []
    for one, layer in zip(found, layers.given, strict=True):
        kernel = np.ascontiguousarray(layer.kernel, np.float32)
        bias = None if layer.bias is None else np.ascontiguousarray(layer.bias, np.float32)
        kept.append((kernel, bias))
        one.kernel, one.bias = kernel.ctypes.data, None if bias is None else bias.ctypes.data
        (one.inputs, one.outputs), one.relu = kernel.shape, layer.relu
    return found, kept


def folded(read: Callable[[str], np.ndarray], names: Collection[str], config: ModelConfig) -> dict[str, Callable[[], np.ndarray]]:
    """Return a reader for every weight of the plain model that scores as the model does with its moving statistics and the shift of its logits.

    The shift is part of the last bias.
    A layer that is normalised becomes a kernel and a bias: kernel gamma / sqrt(variance + epsilon), and beta - mean gamma / sqrt(variance + epsilon).

    Args:
        read: returns a weight by its name, `top_mlp/0/kernel` for instance.
        names: the names of all weights and moving statistics.
        config: the options of the model.
    """
    epsilon = config.batch_norm_epsilon
    found: dict[str, Callable[[], np.ndarray]] = {}
    for name in names:
        layer, _, kind = name.rpartition("/")
        if f"{layer}/gamma" not in names:
            found[name] = lambda name=name: read(name)
        elif kind not in _FOLDED:
            found[name] = lambda name=name, layer=layer: read(name) * _scale(read, layer, epsilon).astype(np.float32)
            found[f"{layer}/bias"] = lambda layer=layer: _bias(read, layer, epsilon)
    if config.logit_shift:
        last = bias_of_logit(names)
        found[last] = lambda: (read(last).astype(np.float64) + config.logit_shift).astype(np.float32)
    return found


def bias_of_logit(names: Collection[str]) -> str:
    """Return the name of a bias that is added to every logit, given the names of a model's weights. Raises ValueError where there is none."""
    for part in ("top_mlp", "deep", "fusion", "wide"):
        if layers := [int(name.split("/")[1]) for name in names if re.fullmatch(rf"{part}/\d+/bias", name)]:
            return f"{part}/{max(layers)}/bias"
    if "wide/bias" not in names:
        raise ValueError(f"expected a bias of the logits among {sorted(names)}")
    return "wide/bias"


def _scale(read: Callable[[str], np.ndarray], layer: str, epsilon: float) -> np.ndarray:
    return read(f"{layer}/gamma").astype(np.float64) / np.sqrt(read(f"{layer}/moving_variance").astype(np.float64) + epsilon)


def _bias(read: Callable[[str], np.ndarray], layer: str, epsilon: float) -> np.ndarray:
    return (read(f"{layer}/beta").astype(np.float64) - read(f"{layer}/moving_mean") * _scale(read, layer, epsilon)).astype(np.float32)


def native_scorer_library() -> ctypes.CDLL | None:
    """Return the scorer's library; None where it is not built or is switched off. Raises UserError where it cannot be loaded."""
    path = scorer_path()
    if os.environ.get("DLRM_NATIVE_OPS") == "0" or not path.is_file():
        return None
    return _loaded(path)


def native_precisions() -> tuple[str, ...]:
    """Return the precisions in which the scorer is the faster one on this machine; none where `native_scorer_library` is None."""
    library = native_scorer_library()
    if library is None:
        return ()
    return (FLOAT32, BFLOAT16) if library.dlrm_scorer_bfloat16() else (FLOAT32,)


@functools.cache
def _loaded(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        library.dlrm_scorer_new.restype = ctypes.c_void_p
        library.dlrm_scorer_delete.argtypes = [ctypes.c_void_p]
        library.dlrm_scorer_delete.restype = None
        library.dlrm_scorer_new.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int]
        library.dlrm_scorer_score.argtypes = [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 3]
        library.dlrm_scorer_score.restype = ctypes.c_int64
        library.dlrm_scorer_score_rows.argtypes = [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 5]
        library.dlrm_scorer_score_rows.restype = ctypes.c_int64
        library.dlrm_scorer_bfloat16.restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        raise UserError(f"{path}: {error}; remove it and run ops/build, or set DLRM_NATIVE_OPS=0") from None
    return library
