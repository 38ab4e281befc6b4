"""The C++ operations (`ops/`), where they were built: what TensorFlow's own do, in far fewer passes over memory.

`ops/build`, which `scripts/install` calls, compiles them for the sources, the TensorFlow and the processor at hand. Where that was not done, on
a GPU, or with `DLRM_NATIVE_OPS=0` in the environment, TensorFlow's operations do the work. `DLRM_AMX=0` keeps them from the processor's matrix tiles.
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
from typing import NamedTuple

from model.embedding.blocks import Blocks
from utils.errors import UserError

SOURCES = Path(__file__).resolve().parents[1] / "ops"


def architecture() -> str:
    """What the compiler builds for, `-march`: "native", or the value of `DLRM_OPS_ARCH` (an image for other machines: x86-64-v3)."""
    return os.environ.get("DLRM_OPS_ARCH") or "native"


def library_path() -> Path:
    """Where the library for these sources, this TensorFlow and this processor is, or belongs."""
    return _path("row_ops", tensorflow_version())


def scorer_path() -> Path:
    """Where the scorer's library is, or belongs, which knows no TensorFlow; see `native_scorer`."""
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
    """Of the installed package, which it takes no import to know."""
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            pass
    return "no tensorflow"


def processor() -> str:
    """Instruction sets of the processor."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return " ".join(sorted(found[1].split())) if found else platform.processor()


class RowRule(NamedTuple):
    """An optimizer's arithmetic in one step, as the C++ operation wants it: see `ops/row_rules.h`."""

    name: str
    scalars: object  # float32 [s] tensor
    constants: tuple[float, ...] = ()


class Mask(NamedTuple):
    """Which of a layer's units a step leaves out: those whose random bits are below the threshold; see `layers.dropout.Dropout`."""

    key: int  # of the generator, below 2^32
    threshold: int  # below 2^32
    scale: float  # of the units that are kept
    step: object  # int64 scalar tensor
    first: object  # the same: the number of the first sample in the global batch


class Lookup(NamedTuple):
    """A feature's lookup in one of the tables that an operation is given."""

    table: int  # its place among those given
    id_row: int  # first of its rows of `ids`
    hotness: int = 1  # rows of `ids` that it takes
    mean: bool = False


class NativeOperations:
    """The operations of a loaded library, on tables in host memory.

    Attributes:
        tiles: whether bfloat16's interaction goes through the processor's matrix tiles (Intel AMX); False where there are none.
        key: names what computes; equal keys give equal bits.
    """

    def __init__(self, path: Path, tiles: bool):
        import tensorflow as tf

        self._library = tf.load_op_library(str(path))
        symbols = ctypes.CDLL(str(path))
        symbols.dlrm_compiler.restype = ctypes.c_char_p
        self.tiles = tiles and bool(symbols.dlrm_has_tiles())
        key = f"C++ operations {path.stem.rpartition('-')[2]} by {symbols.dlrm_compiler().decode()}"
        self.key = f"{key} with AMX" if self.tiles else key

    def look_up(self, tables: Sequence, ids, lookups: Sequence[Lookup], dtype):
        """Vectors of features side by side: a row of a table each, or the sum or the mean of several.

        Sums are of float32, from zero, in the order of the ids; no id gives zeros.

        Args:
            tables: variables `[V, width]` float32.
            ids: `[K, B]` int32; -1 is no id where a feature may have several.
            lookups: of the features; several may be in one table.
            dtype: of the result; float32, bfloat16 or float16.

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
        """Update the rows that the ids name, in place; no row is touched if any id is out of range.

        The gradients of a row are summed in float32, from zero, in the order of the lookups in its table, then of the ids of a sample, then of the
        samples; each is divided by the loss scale and, after a mean, by the sample's number of ids. Then the row is updated once.

        Args:
            rule: the optimizer's.
            tables: variables `[V, width]` float32.
            slots: the optimizer's, of their tables' shapes or `[V, 1]`: all of the first table, then all of the second, …
            ids: `[K, B]` int32; -1 is no id where a feature may have several.
            lookups: of the features; several may be in one table.
            gradients: of the B samples, in equal consecutive parts, `[B / parts, …]` in float32, bfloat16 or float16.
            columns: for each lookup its first column in a sample's gradient, flattened.
            loss_scale: what gradients are divided by, in float32.

        Raises:
            tf.errors.InvalidArgumentError: an id is out of range, a table or slot is named twice, or a table's ids are more than 2^30.
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

    def blocks_to_samples(self, flat, samples: int, length: int, blocks: Blocks, others: Sequence, other_columns: Sequence[int]):
        """Samples' vectors out of what came from the workers.

        Args:
            flat: `[samples · columns of all blocks]`.
            samples, length: of the result.
            blocks: where each column is in `flat`.
            others: further columns of the result, `[samples, any]` each in the same dtype.
            other_columns: the first column of each of them.

        Returns:
            `[samples, length]`.
        """
        runs = {name: list(values) for name, values in vars(blocks).items()}
        return self._library.dlrm_blocks_to_samples(
            blocks=flat, others=list(others), samples=samples, length=length, other_columns=list(other_columns), **runs
        )

    def samples_to_blocks(self, parts: Sequence, blocks: Blocks):
        """The way back: samples' vectors in consecutive parts `[n, length]` -> `[samples · columns of all blocks]`."""
        runs = {name: list(values) for name, values in vars(blocks).items()}
        flat = self._library.dlrm_samples_to_blocks(parts=list(parts), **runs)
        flat.set_shape([sum(part.shape[0] for part in parts) * sum(blocks.widths)])
        return flat

    def interact(self, bottom, embeddings):
        """The dot interaction, bottom `[b, D]`, embeddings `[b, F, D]` -> `[b, D+P]`, see `DotInteraction`; with its gradient.

        Last bits differ from TensorFlow's: the products are summed in another order. It is the same order for every sample, whatever the
        number of threads and of slices.
        """
        import tensorflow as tf

        @tf.custom_gradient
        def interact(bottom, embeddings):
            def gradient(upstream):
                return self._library.dlrm_interact_gradient(bottom=bottom, embeddings=embeddings, upstream=upstream, tiles=self.tiles)

            return self._library.dlrm_interact(bottom=bottom, embeddings=embeddings, tiles=self.tiles), gradient

        return interact(bottom, embeddings)

    def bias_relu(self, products, bias):
        """`relu(products + bias)`, products `[b, out]`, bias `[out]` float32, summed in float32."""
        return self._library.dlrm_bias_relu(products=products, bias=bias)

    def bias_relu_dropout(self, products, bias, mask: Mask):
        """The same, and then dropout; the units that are left out are −0."""
        import tensorflow as tf

        place = tf.stack([mask.step, mask.first])
        return self._library.dlrm_bias_relu_dropout(
            products=products, bias=bias, place=place, key=mask.key, threshold=mask.threshold, scale=mask.scale
        )

    def relu_gradient(self, upstream, outputs, scale: float = 1.0):
        """The gradient of `relu(x + bias)` by x, `[b, out]` like `upstream`, and by the bias, `[out]` float32; `outputs` are the layer's.

        With the scale of a mask, those of `bias_relu_dropout`.
        """
        return self._library.dlrm_relu_gradient(upstream=upstream, outputs=outputs, scale=scale)

    def sum_in_pairs(self, parts: Sequence):
        """Sum of tensors of one shape, in float32 and in the order of `ordered_sums.pairwise_sum`."""
        return self._library.dlrm_sum_in_pairs(parts=list(parts))


def _attributes(lookups: Sequence[Lookup]) -> dict[str, list]:
    """As the operations want them."""
    return {
        "lookup_tables": [lookup.table for lookup in lookups],
        "id_rows": [lookup.id_row for lookup in lookups],
        "hotness": [lookup.hotness for lookup in lookups],
        "means": [bool(lookup.mean) for lookup in lookups],
    }


def native_operations() -> NativeOperations | None:
    """The operations, or None where TensorFlow's are to be used. Call once the device is chosen."""
    from model.compilation import on_gpu

    path = library_path()
    if os.environ.get("DLRM_NATIVE_OPS") == "0" or on_gpu() or not path.is_file():
        return None
    return library_at(path)


@functools.cache
def library_at(path: Path) -> NativeOperations:
    """Load the operations, once in a process."""
    import tensorflow as tf

    try:
        return NativeOperations(path, tiles=os.environ.get("DLRM_AMX") != "0")
    except (OSError, AttributeError, tf.errors.OpError) as error:
        raise UserError(f"{path}: {error}; remove it and run ops/build, or set DLRM_NATIVE_OPS=0") from None


def operations_key() -> str:
    """What this worker computes with, to be compared over workers: where keys differ, last bits may. Call once the device is chosen."""
    operations = native_operations()
    return operations.key if operations else "TensorFlow's operations"


def operations_description() -> str:
    """The same for people, and why it is not the C++ operations on a CPU."""
    from model.compilation import on_gpu

    operations = native_operations()
    if operations:
        return "C++ operations with AMX" if operations.tiles else "C++ operations"
    if on_gpu():
        return "TensorFlow's operations"
    switched_off = os.environ.get("DLRM_NATIVE_OPS") == "0"
    return f"TensorFlow's operations{'' if switched_off else ', slower: the C++ ones are not built, see ops/build'}"
