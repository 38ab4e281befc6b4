"""The options of `--mode export`: typed, documented, checked when constructed."""

import re
from dataclasses import dataclass

from utils.config.option import Bounds, check, check_options, option
from utils.config.options import EXPORT

TRITON, SAVEDMODEL, ONNX = FORMATS = ("triton", "savedmodel", "onnx")
IDS, RAW = INPUTS = ("ids", "raw")
FLOAT32, BFLOAT16, FLOAT16, INT8 = PRECISIONS = ("float32", "bfloat16", "float16", "int8")
CPU, GPU = DEVICES = ("cpu", "gpu")

_MAX_BATCH = 2**20  # Triton keeps a whole batch of inputs and outputs in memory
_MAX_DELAY_US = 10_000_000
_MAX_INSTANCES = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*").fullmatch
NAME_EXPECTED = "letters, digits, '_', '.' and '-', a letter or a digit first"


def is_name(text: str) -> bool:
    """Return whether a text may be a model's name, which is a folder's name in the repository."""
    return bool(_NAME(text))


@dataclass(frozen=True)
class ExportConfig:
    """Export of a trained model for serving."""

    export_path: str | None = option(None, "folder of a Triton model repository to write into; created if missing", modes=(EXPORT,))
    model_name: str = option("dlrm", "name of the model in the repository; further formats are called NAME_savedmodel, NAME_onnx", modes=(EXPORT,))
    model_version: int = option(
        1,
        "version number; an existing version is never replaced",
        modes=(EXPORT,),
        bounds=Bounds("a whole number of at least 1", 1, 2**31, below=True),
    )
    formats: tuple[str, ...] = option(
        (TRITON,), "formats to write: triton (Python backend, tables mapped from files), savedmodel (TensorFlow alone), onnx", modes=(EXPORT,)
    )
    inputs: str = option(IDS, "inputs of the exported model: ids, or raw: raw values as in the log", choices=INPUTS, modes=(EXPORT,))
    max_batch_size: int = option(
        65536,
        "maximum samples that the server batches together",
        unit="samples",
        modes=(EXPORT,),
        bounds=Bounds(f"1 to {_MAX_BATCH} samples", 1, _MAX_BATCH),
    )
    max_queue_delay_us: int = option(
        1000,
        "longest time that the server waits for more requests to batch together; 0 for no dynamic batching",
        unit="microseconds",
        modes=(EXPORT,),
        bounds=Bounds(f"0 to {_MAX_DELAY_US} microseconds", 0, _MAX_DELAY_US),
    )
    preferred_batch_size: tuple[int, ...] = option(
        (),
        "batch sizes at which dynamic batching stops waiting; the default is half of --max_batch_size and all of it",
        modes=(EXPORT,),
        not_with=("max_queue_delay_us 0",),
    )
    precision: str | None = option(
        None,
        "precision of tables and matrix products: float32, bfloat16, float16 (on a CPU of the tables only) or int8 (tables in rows of int8, each "
        "with a scale and a bias); the default is the precision that the training run computed in",
        choices=PRECISIONS,
        modes=(EXPORT,),
    )
    instances: int = option(
        1,
        "copies of the model that the server runs in parallel; they share the tables",
        modes=(EXPORT,),
        bounds=Bounds(f"1 to {_MAX_INSTANCES}", 1, _MAX_INSTANCES),
    )
    device: str = option(CPU, "device that the server computes on; tables stay in host memory", choices=DEVICES, modes=(EXPORT,))

    def __post_init__(self):
        check_options(self)
        check(is_name(self.model_name), "model_name", self.model_name, NAME_EXPECTED)
        known = bool(self.formats) and set(self.formats) <= set(FORMATS) and len(set(self.formats)) == len(self.formats)
        check(known, "formats", ",".join(self.formats), f"one or more of {', '.join(FORMATS)}, each once")
        sizes, shown = self.preferred_batch_size, ",".join(map(str, self.preferred_batch_size))
        within = all(1 <= size <= self.max_batch_size for size in sizes)
        check(within, "preferred_batch_size", shown, f"sizes from 1 to --max_batch_size {self.max_batch_size}")

    @property
    def preferred(self) -> tuple[int, ...]:
        """The preferred batch sizes in ascending order."""
        return tuple(sorted(set(self.preferred_batch_size or (max(self.max_batch_size // 2, 1), self.max_batch_size))))

    @property
    def names(self) -> dict[str, str]:
        """The model's name in the repository, by format."""
        return {form: self.name_of(form) for form in self.formats}

    def name_of(self, form: str) -> str:
        """Return the model's name in one of `FORMATS`."""
        return self.model_name if form == TRITON else f"{self.model_name}_{form}"
