"""What TensorFlow computes with: the devices, threads and precision of a run."""

import os

from run.affinity import OWN
from utils.config.device import DeviceConfig
from utils.errors import UserError


def configure_tensorflow(config: DeviceConfig, local_rank: int, local_size: int = 1) -> str:
    """Choose the device and threads; returns "GPU" or "CPU". Call before any tensor exists.

    Args:
        config: the run's device options.
        local_rank: this worker's number on its machine; it takes the GPU of that number.
        local_size: workers on this machine; unless told otherwise each takes its share of the processors as threads.
    """
    import tensorflow as tf

    gpus = physical_gpus(config)
    tf.config.set_visible_devices(gpus[local_rank % len(gpus)] if gpus else [], "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    sharing = 1 if config.affinity in OWN else local_size  # workers on these processors
    share = max(len(os.sched_getaffinity(0)) // sharing, 1) if local_size > 1 else None
    threads = config.intra_op_parallelism or share
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    # With one thread inside operations, operations side by side only get into each other's way: 4% of the time of two workers on two processors.
    if between := config.inter_op_parallelism or (1 if threads == 1 else None):
        tf.config.threading.set_inter_op_parallelism_threads(between)
    # It would turn the tree of additions in `ordered_sums.pairwise_sum` into one long sum, whose bits depend on N.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    tf.config.run_functions_eagerly(config.run_eagerly)
    return "GPU" if gpus else "CPU"


def configured(config: DeviceConfig, local_rank: int = 0, local_size: int = 1) -> str:
    """The same in a process that may have used TensorFlow before: its devices and threads then stay as they are.

    Raises:
        UserError: the options want them otherwise.
    """
    import tensorflow as tf

    try:
        return configure_tensorflow(config, local_rank, local_size)
    except RuntimeError:  # TensorFlow's: they cannot be changed any more
        gpu = bool(tf.config.get_visible_devices("GPU"))
        if (gpu and config.cpu) or config.intra_op_parallelism or config.inter_op_parallelism:
            raise UserError(
                "TensorFlow is in use in this process already, its devices and threads cannot be changed: drop --cpu, --intra_op_parallelism and "
                "--inter_op_parallelism, or begin in a new process"
            ) from None
        return "GPU" if gpu else "CPU"


def physical_gpus(config: DeviceConfig) -> list:
    """The GPUs of this machine that the process may use; none with `--cpu`."""
    import tensorflow as tf

    return [] if config.cpu else tf.config.list_physical_devices("GPU")


def set_precision(config: DeviceConfig) -> None:
    """How exactly float32 products are taken. Call when it is known what a checkpoint brings, before the model is built."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(config.tf32)


def compute_dtype(config: DeviceConfig, device: str) -> str:
    """The dtype in which dense layers compute: float32, or what `--amp` says for this device."""
    if not config.amp:
        return "float32"
    return config.amp_dtype or ("float16" if device == "GPU" else "bfloat16")
