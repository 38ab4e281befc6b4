"""TensorFlow is set up once for all tests: on the CPU, with few threads, so that a test's cost is its own."""

from utils.runtime import prepare_tensorflow

prepare_tensorflow()

import tensorflow as tf  # noqa: E402 - after it was prepared
from hypothesis import settings  # noqa: E402

tf.config.set_visible_devices([], "GPU")
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(2)

# A run on a busy machine is slow now and then; a test that is too slow is what pytest-timeout is for.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")
