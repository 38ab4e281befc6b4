"""The C++ operations (`ops/`), where they are built: the same work as TensorFlow's operations in far fewer passes over memory.

`ops/build`, which `scripts/install` calls, compiles the operations for the current sources, TensorFlow and processor. Where they are not built, on a
GPU, or with `DLRM_NATIVE_OPS=0` in the environment, TensorFlow's operations are used. With `DLRM_AMX=0` the C++ operations do not use the processor's
matrix tiles.
"""

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from model.embedding.blocks import Blocks
from utils.errors import UserError

if TYPE_CHECKING:
    from model.native_layers import Mask

SOURCES = Path(__file__).resolve().parents[1] / "ops"


def architecture() -> str:
    """Return the compiler's target, `-march`: "native", or the value of `DLRM_OPS_ARCH` (for an image for other machines: x86-64-v3)."""
    return os.environ.get("DLRM_OPS_ARCH") or "native"


def library_path() -> Path:
    """Return the path of the library for these sources, this TensorFlow and this processor, whether or not it is built."""
    return _path("row_ops", tensorflow_version())


def scorer_path() -> Path:
    """Return the path of the scorer's library, which does not use TensorFlow, whether or not it is built; see `native_scorer`."""
    return _path("scorer")


def _path(name: str, *parts: str) -> Path:
    parts = (*parts, platform.machine(), architecture())
    if architecture() == "native":
        parts = (*parts, processor())
    sources = [path for path in sorted(SOURCES.iterdir()) if path.suffix in (".cc", ".h") or path.name == "build"]
    digest = hashlib.sha256("\n".join(parts).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return Path(sys.prefix) / "lib" / "dlrm_ops" / f"{name}-{digest.hexdigest()[:16]}.so"


def tensorflow_version() -> str:
    """Return the name and version of the installed TensorFlow package, without importing it."""
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            pass
    return "no tensorflow"


def processor() -> str:
    """Return the instruction sets of the processor."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return " ".join(sorted(found[1].split())) if found else platform.processor()


class RowRule(NamedTuple):
    """An optimizer's arithmetic in one step, as the C++ operation takes it; see `ops/row_rules.h`."""

    name: str
    scalars: object  # float32 [s] tensor
    constants: tuple[float, ...] = ()


class Lookup(NamedTuple):
    """A feature's lookup in one of the tables passed to an operation."""

    table: int  # index in the tables
    id_row: int  # the first of its rows of `ids`
    hotness: int = 1  # number of rows of `ids`
    mean: bool = False  # True: the vectors are averaged; False: summed
    weighted: bool = False  # True: as many further rows of `ids` follow, the bits of the ids' weights


class NativeOperations:
    """The operations of a loaded library, on tables in host memory.

    Attributes:
        norm: the passes of batch normalisation.
        vectors: the passes over the vectors of factorisation machines and of FinalMLP.
        cross: the passes of cross layers.
        products: the products of dense layers by matrix tiles; only where there are tiles.
        tiles: whether the processor's matrix tiles (Intel AMX) are used; False where there are none.
        key: identifies the compiled operations; equal keys give equal bits.
    """

    def __init__(self, path: Path, tiles: bool):
        import tensorflow as tf

        self._library = tf.load_op_library(str(path))
        self.norm, self.vectors, self.cross, self.products = _of_layers(self._library)
        symbols = ctypes.CDLL(str(path))
        symbols.dlrm_compiler.restype = ctypes.c_char_p
        self.tiles = tiles and bool(symbols.dlrm_has_tiles())
        key = f"C++ operations {path.stem.rpartition('-')[2]} by {symbols.dlrm_compiler().decode()}"
        self.key = f"{key} with AMX" if self.tiles else key

    def look_up(self, tables: Sequence, ids, lookups: Sequence[Lookup], dtype):
        """Return the vectors of the features side by side: one table row each, or the sum or the mean of several.

        Sums are accumulated in float32, from zero, in the order of the ids; a sample without ids gets zeros.

        Args:
            tables: variables `[V, width]` float32.
            ids: `[K, B]` int32; -1 means no id where a feature may have several, or has weights.
            lookups: the lookups of the features; several may be in one table.
            dtype: the dtype of the result: float32, bfloat16 or float16.

        Returns:
            `[B, sum of the lookups' widths]`, in the order of the lookups.

        Raises:
            tf.errors.InvalidArgumentError: an id is out of range.
        """
        widths = [tables[lookup.table].shape[1] for lookup in lookups]
        return self._library.dlrm_look_up_rows(tables=[table.handle for table in tables], ids=ids, T=dtype, widths=widths, **_attributes(lookups))

    def update(
        self,
        rule: RowRule,
        tables: Sequence,
        slots: Sequence,
        ids,
        lookups: Sequence[Lookup],
        gradients: Sequence,
        columns: Sequence[int],
        loss_scale: float,
    ) -> None:
        """Update the rows that the ids name, in place; no row changes if any id is out of range.

        The gradients of a row are summed in float32, from zero: in the order of the lookups in its table, then of the ids of a sample, then of the
        samples. Each gradient is divided by the loss scale and, for a mean, by the sample's number of ids, or the sum of their weights; then it is
        multiplied by the id's weight, if it has one. The row is updated once.

        Args:
            rule: the optimizer's rule.
            tables: variables `[V, width]` float32.
            slots: the optimizer's slots, of their tables' shapes or `[V, 1]`: all slots of the first table, then all of the second, …
            ids: `[K, B]` int32; -1 means no id where a feature may have several.
            lookups: the lookups of the features; several may be in one table.
            gradients: the gradients of the B samples, in equal consecutive parts, `[B / parts, …]` in float32, bfloat16 or float16.
            columns: each lookup's first column in a sample's flattened gradient.
            loss_scale: the divisor of the gradients, applied in float32.

        Raises:
            tf.errors.InvalidArgumentError: an id is out of range, a table or slot is given twice, or a table has more than 2^30 ids.
        """
        import tensorflow as tf

        self._library.dlrm_update_rows(
            tables=[table.handle for table in tables],
            slots=[slot.handle for slot in slots],
            ids=ids,
            gradients=list(gradients),
            scalars=rule.scalars,
            columns=list(columns),
            rule=rule.name,
            constants=list(rule.constants),
            loss_scale=tf.convert_to_tensor(loss_scale, tf.float32),
            **_attributes(lookups),
        )

    def blocks_to_samples(self, flat: Sequence, samples: int, length: int, blocks: Blocks, others: Sequence, other_columns: Sequence[int]):
        """Assemble the samples' vectors from the workers' blocks.

        Args:
            flat: vectors that hold whole blocks, one after another; together `[samples · columns of all blocks]`.
            samples, length: the shape of the result.
            blocks: the position of each column in `flat`.
            others: further columns of the result, `[samples, any]` each, in the same dtype.
            other_columns: the first column of each of `others` in the result.

        Returns:
            `[samples, length]`.
        """
        runs = {name: list(values) for name, values in vars(blocks).items()}
        return self._library.dlrm_blocks_to_samples(
            blocks=list(flat), others=list(others), samples=samples, length=length, other_columns=list(other_columns), **runs
        )

    def samples_to_blocks(self, parts: Sequence, blocks: Blocks):
        """Invert `blocks_to_samples`: samples' vectors in consecutive parts `[n, length]` -> `[samples · columns of all blocks]`."""
        runs = {name: list(values) for name, values in vars(blocks).items()}
        flat = self._library.dlrm_samples_to_blocks(parts=list(parts), **runs)
        flat.set_shape([sum(part.shape[0] for part in parts) * sum(blocks.widths)])
        return flat

    def interact(self, bottom, embeddings):
        """Compute the dot interaction of bottom `[b, D]` and embeddings `[b, F, D]`, `[b, D+P]`, with its gradient; see `DotInteraction`.

        The last bits differ from TensorFlow's, because the products are summed in another order. The order is the same for every sample and for any
        number of threads and slices.
        """
        import tensorflow as tf

        @tf.custom_gradient
        def interact(bottom, embeddings):
            def gradient(upstream):
                return self._library.dlrm_interact_gradient(bottom=bottom, embeddings=embeddings, upstream=upstream, tiles=self.tiles)

            return self._library.dlrm_interact(bottom=bottom, embeddings=embeddings, tiles=self.tiles), gradient

        return interact(bottom, embeddings)

    def bias_relu(self, products, bias):
        """Return `relu(products + bias)` for products `[b, out]` and bias `[out]` float32; the sum is computed in float32."""
        return self._library.dlrm_bias_relu(products=products, bias=bias)

    def bias_relu_dropout(self, products, bias, mask: "Mask"):
        """Compute `bias_relu` followed by dropout; dropped units are −0."""
        import tensorflow as tf

        return self._library.dlrm_bias_relu_dropout(products=products, bias=bias, place=tf.stack([mask.step, mask.first]), **mask.attributes())

    def relu_gradient(self, upstream, outputs, scale: float = 1.0, slices: int = 1):
        """Return the gradients of `relu(x + bias)` with respect to x, `[b, out]` like `upstream`, and to the bias, `[out]` float32.

        `outputs` are the layer's outputs. With a mask's scale, these are the gradients of `bias_relu_dropout`. The bias's are summed by slices.
        """
        return self._library.dlrm_relu_gradient(upstream=upstream, outputs=outputs, scale=scale, slices=slices)

    def sum_in_pairs(self, parts: Sequence):
        """Sum tensors of equal shape, in float32 and in the order of `ordered_sums.pairwise_sum`."""
        return self._library.dlrm_sum_in_pairs(parts=list(parts))


def _of_layers(library) -> tuple:
    from model.native_layers import CrossOperations, NormOperations, ProductOperations, VectorOperations  # here, because a server has no need of them

    return NormOperations(library), VectorOperations(library), CrossOperations(library), ProductOperations(library)


def narrowed(operations: NativeOperations, values, dtype):
    """Return float32 values in a dtype of 16 bits, with the bits of `tf.cast` and its gradient."""
    import tensorflow as tf

    @tf.custom_gradient
    def cast(values):
        return operations._library.dlrm_narrow(values=values, T=dtype), lambda upstream: tf.cast(upstream, tf.float32)

    return cast(tf.convert_to_tensor(values))


class DenseRule(NamedTuple):
    """The update of dense weights by an optimizer: the rule's name in `ops/dense_update.h`, its slots by their names in Keras, and its constants."""

    name: str
    slots: tuple[str, ...]
    constants: tuple[float, ...]


def update_dense(operations: NativeOperations, rule: DenseRule, weights: Sequence, slots: Sequence, gradients: Sequence, scalars) -> None:
    """Update float32 variables and their slots in one pass.

    The bits are those of Keras's optimizers by TensorFlow's operations, but for the sign of NaN.

    Args:
        operations: the operations.
        rule: the rule.
        weights: n variables, each given once.
        slots: the slots of the first variable, then those of the second, …
        gradients: n tensors, of the variables' shapes.
        scalars: float32 `[1]`, see `Rule.scalars`.
    """
    handles = ([variable.handle for variable in some] for some in (weights, slots))
    operations._library.dlrm_update_dense(*handles, list(gradients), scalars, rule=rule.name, constants=list(rule.constants))


def reserve_rows(operations: NativeOperations, rows: int, columns: int):
    """Return rows of zeros, `[rows, columns]` float32, that take memory as they are written. Raises tf.errors.ResourceExhaustedError."""
    return operations._library.dlrm_reserve_rows(shape=[rows, columns])


def _attributes(lookups: Sequence[Lookup]) -> dict[str, list]:
    """Convert lookups to the attributes of the operations."""
    return {
        "lookup_tables": [lookup.table for lookup in lookups],
        "id_rows": [lookup.id_row for lookup in lookups],
        "hotness": [lookup.hotness for lookup in lookups],
        "means": [bool(lookup.mean) for lookup in lookups],
        "weighted": [bool(lookup.weighted) for lookup in lookups],
    }


def native_operations() -> NativeOperations | None:
    """Return the operations, or None where TensorFlow's are to be used. Call this only after the device is chosen."""
    from model.compilation import on_gpu

    path = library_path()
    if os.environ.get("DLRM_NATIVE_OPS") == "0" or on_gpu() or not path.is_file():
        return None
    return operations_at(path)


@functools.cache
def operations_at(path: Path) -> NativeOperations:
    """Load the operations, once in a process. Raises UserError where that fails."""
    import tensorflow as tf

    try:
        return NativeOperations(path, tiles=os.environ.get("DLRM_AMX") != "0")
    except (OSError, AttributeError, tf.errors.OpError) as error:
        raise UserError(f"{path}: {error}; remove it and run ops/build, or set DLRM_NATIVE_OPS=0") from None


def operations_key() -> str:
    """Return a key of this worker's operations, for comparison between workers: where keys differ, last bits may differ.

    Call this only after the device is chosen.
    """
    operations = native_operations()
    return operations.key if operations else "TensorFlow's operations"


def operations_description() -> str:
    """Describe this worker's operations for the user; on a CPU without the C++ operations, say why."""
    from model.compilation import on_gpu

    operations = native_operations()
    if operations:
        return "C++ operations with AMX" if operations.tiles else "C++ operations"
    if on_gpu():
        return "TensorFlow's operations"
    switched_off = os.environ.get("DLRM_NATIVE_OPS") == "0"
    return f"TensorFlow's operations{'' if switched_off else ', slower: the C++ operations are not built; run ops/build'}"
