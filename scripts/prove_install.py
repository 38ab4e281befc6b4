"""Check the installation: two workers connect over MPI, exchange rows by Horovod's alltoall and compare the rows received.

scripts/install runs it under horovodrun.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from mpi4py import MPI  # imported before TensorFlow, as in the application

ranks = MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.Get_rank())

kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 2)  # hides TensorFlow's log lines that are written before the log level is read
try:
    import horovod.tensorflow as hvd
    import numpy as np
    import tensorflow as tf
finally:
    os.dup2(kept, 2)

hvd.init()
if "--gpu" in sys.argv:  # one device for each worker
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[hvd.local_rank()], "GPU")
if ranks != list(range(hvd.size())):
    sys.exit(f"mpi4py sees workers {ranks}, Horovod {hvd.size()}: they were built for different MPIs, or the launcher used none")
rows = tf.fill([hvd.size(), 3], float(hvd.rank()))  # row i goes to worker i
received, _ = hvd.alltoall(rows, splits=[1] * hvd.size(), name="prove")
expected = np.repeat(np.arange(hvd.size(), dtype=np.float32)[:, None], 3, axis=1)
if hvd.size() < 2 or not np.array_equal(received.numpy(), expected):
    sys.exit(f"worker {hvd.rank()} of {hvd.size()} received {received.numpy().tolist()}, expected {expected.tolist()}")
if hvd.rank() == 0:
    print(f"alltoall between {hvd.size()} workers on {rows.device.split(':')[-2]}s: correct (TensorFlow {tf.__version__})")
