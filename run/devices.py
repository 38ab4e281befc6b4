"""Devices, threads and precision of TensorFlow in a run."""

import os

from run.affinity import OWN
from utils.config.device import DeviceConfig
from utils.errors import UserError


def configure_tensorflow(config: DeviceConfig, local_rank: int, local_size: int = 1) -> str:
    """Choose the device and the threads; return "GPU" or "CPU". Call before any tensor exists.

    Args:
        config: device options of the run.
        local_rank: number of this worker on its machine; it uses the GPU of that number.
        local_size: workers on this machine; by default each uses its share of the processors as threads.
    """
    import tensorflow as tf

    gpus = physical_gpus(config)
    tf.config.set_visible_devices(gpus[local_rank % len(gpus)] if gpus else [], "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    sharing = 1 if config.affinity in OWN else local_size  # workers that share these processors
    share = max(len(os.sched_getaffinity(0)) // sharing, 1) if local_size > 1 else None
    threads = config.intra_op_parallelism or share
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    # With one thread inside operations, parallel operations only obstruct each other: 4% of the time of two workers on two processors.
    if between := config.inter_op_parallelism or (1 if threads == 1 else None):
        tf.config.threading.set_inter_op_parallelism_threads(between)
    # The arithmetic optimizer would turn the tree of additions in `ordered_sums.pairwise_sum` into one long sum, whose bits depend on N.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    tf.config.run_functions_eagerly(config.run_eagerly)
    return "GPU" if gpus else "CPU"


def configured(config: DeviceConfig, local_rank: int = 0, local_size: int = 1) -> str:
    """Configure as `configure_tensorflow` does; keep devices and threads as they are where this process has already used TensorFlow.

    Raises:
        UserError: TensorFlow is already in use and the options ask for other devices or threads.
    """
    import tensorflow as tf

    try:
        return configure_tensorflow(config, local_rank, local_size)
    except RuntimeError:  # TensorFlow raises this once devices and threads cannot be changed any more
        gpu = bool(tf.config.get_visible_devices("GPU"))
        if (gpu and config.cpu) or config.intra_op_parallelism or config.inter_op_parallelism:
            raise UserError(
                "TensorFlow is already in use in this process, so its devices and threads cannot be changed; drop --cpu, --intra_op_parallelism and "
                "--inter_op_parallelism, or start a new process"
            ) from None
        return "GPU" if gpu else "CPU"


def physical_gpus(config: DeviceConfig) -> list:
    """Return the GPUs of this machine that the process may use; none with `--cpu`."""
    import tensorflow as tf

    return [] if config.cpu else tf.config.list_physical_devices("GPU")


def set_precision(config: DeviceConfig) -> None:
    """Set the precision of float32 products. Call when the checkpoint's options are known, before the model is built."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(config.tf32)


def compute_dtype(config: DeviceConfig, device: str) -> str:
    """Return the dtype in which dense layers compute: float32, or the `--amp` dtype of this device."""
    if not config.amp:
        return "float32"
    return config.amp_dtype or ("float16" if device == "GPU" else "bfloat16")
