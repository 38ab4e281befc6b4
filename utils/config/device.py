"""The options of the device and its precision: typed, documented, checked when constructed."""

from dataclasses import dataclass

from utils.config.option import INHERIT, Bounds, check, check_options, option
from utils.config.options import TRAIN

AFFINITIES = ("socket", "single", "single_unique", "socket_unique_interleaved", "socket_unique_continuous", "disabled")
_MAX_THREADS = 1024  # more than a machine's processors; each thread needs a stack of its own


@dataclass(frozen=True)
class DeviceConfig:
    """Device and precision."""

    cpu: bool = option(False, "run on the CPU even where there is a GPU")
    amp: bool = option(
        False, "automatic mixed precision: dense layers compute in --amp_dtype; tables and weights stay float32", resume=INHERIT, in_scores=True
    )
    amp_dtype: str | None = option(
        None,
        "precision of --amp; the default is float16 on a GPU, bfloat16 on a CPU",
        choices=("float16", "bfloat16"),
        resume=INHERIT,
        in_scores=True,
        replaced_by=("amp",),
        needs="amp",
    )
    loss_scale: float | str = option(
        65536.0,
        "loss scale of float16 training: a number, or dynamic: halved when gradients overflow, doubled after 2000 steps without; steps that overflow "
        "are skipped",
        choices=("dynamic",),
        modes=(TRAIN,),
        resume=INHERIT,
        needs="amp",
        bounds=Bounds("at least 1, or dynamic", 1),
    )
    gradient_slices: int | None = option(
        None,
        "slices of the global batch, whose gradients are summed in a fixed order: with 8 slices, the bits of the weights are the same with 1, 2, 4 "
        "and 8 workers; the default on a CPU is the largest of 1, 2, 4 and 8 with at least 1024 samples per slice, on a GPU 1",
        modes=(TRAIN,),
        resume=INHERIT,
        unrecorded=8,
    )
    xla: bool | str = option(
        False,
        "compile with XLA the parts that gain from it: on a GPU the dense part of the step, on a CPU the dense weights' optimizer; all: on any "
        "device the dense forward and backward pass and optimizer",
        choices=("all",),
        resume=INHERIT,
        in_scores=True,
    )
    tf32: bool = option(True, "compute float32 products in TensorFloat-32 on GPUs that have it", resume=INHERIT, not_with=("cpu",))
    run_eagerly: bool = option(False, "run without graphs, for debugging")
    affinity: str = option(
        "disabled",
        "processors that a worker may use, of the socket near its GPU, or without GPUs of its share of the sockets. socket: all; single: the "
        "first; single_unique: one core per worker; socket_unique_interleaved, socket_unique_continuous: the socket's cores divided among "
        "its workers in turn or in blocks, with their hyper-threads; disabled: no change",
        choices=AFFINITIES,
    )
    inter_op_parallelism: int | None = option(
        None,
        "threads that run operations in parallel; the default is TensorFlow's, or 1 where each operation has one thread",
        unit="threads",
        bounds=Bounds(f"1 to {_MAX_THREADS} threads", 1, _MAX_THREADS),
    )
    intra_op_parallelism: int | None = option(
        None,
        "threads within an operation; the default is TensorFlow's, or with several workers on a machine a worker's share of its processors",
        unit="threads",
        bounds=Bounds(f"1 to {_MAX_THREADS} threads", 1, _MAX_THREADS),
    )

    def __post_init__(self):
        check_options(self)
        slices = self.gradient_slices
        check(slices is None or (isinstance(slices, int) and slices >= 1), "gradient_slices", self.gradient_slices, "at least 1")
        check(self.xla in (True, False, "all"), "xla", self.xla, "true, false or all")
        if self.run_eagerly and self.xla:
            raise ValueError("--run_eagerly and --xla exclude each other: XLA compiles graphs; drop one of them")
