"""Training of many small models in one launch, on any number of workers; each worker writes its results. Run by `conftest.py`.

A launch takes seconds and a step on an oversubscribed machine tens of milliseconds, so all configurations share one launch.

    mpirun -np N … python tests/distributed/trainings.py DATASET FOLDER

writes FOLDER/RANK.npz: losses, this worker's weights before and after, logits, bytes sent, and other results that the tests use.
"""

import contextlib
import gc
import itertools
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from small_data import BATCH, DIM, DIMS
from updates import updated

STEPS = 10  # two epochs, each of which ends with a padded batch
PLACEMENTS = {  # thresholds in elements; five tables have 1600 elements, one 504 and one 32
    "tables": (),
    "sliced": ("--column_slice_threshold", "800"),
    "replicated": ("--data_parallel_threshold", "1600"),
    "mixed": ("--column_slice_threshold", "800", "--data_parallel_threshold", "504"),
}
CLIP = ("--clip_norm", "0.01")  # below the norm of every step
NORM = ("--batch_norm", "--dropout", "0.2", *CLIP)
WHOLE = ("--dense_update_rows", "100000", "--table_l2", "0.05")
REGULARISED = ("--dropout", "0.3", "--embedding_l2", "0.1", "--mlp_l2", "0.01")
PARALLEL = ("--interaction", "cross", "--cross_layer_projection_dim", "0", "--num_cross_layers", "2", "--structure", "parallel")
FM = ("--interaction", "fm", "--linear_learning_rate", "0.1", "--embedding_l2", "0.1", "--linear_l2", "0.01", "--top_mlp_dims", "8,1")
FINALMLP = ("--interaction", "finalmlp", "--stream1_dims", "12,8", "--stream2_dims", "6", "--gate_dims", "5", "--num_heads", "2", "--dropout", "0.2")
WIDE_AND_DEEP = ("--interaction", "wide_and_deep", "--dropout", "0.1", "--linear_learning_rate", "0.1")
RATES = {"sgd": "1", "adam": "0.01", "adagrad": "0.1", "rowwise_adagrad": "0.1", "ftrl": "0.1", "rmsprop": "0.01"}


@dataclass(frozen=True)
class Training:
    """One configuration: flags of dlrm.py, the dataset that it repeats, and the number of the data's features that it uses."""

    flags: tuple[str, ...]
    rows: str = "partial"  # a name of `small_data.ROWS` or `LISTS`
    steps: int = STEPS
    batch: int = BATCH
    features: int | None = None  # number of features used, from the first; None for all
    slices: int = 4  # slices of the gradients; each costs time in every step
    dim: int = DIM
    gpu: bool = False  # build the model as for a GPU


def _training(where: str, optimizer: str, *flags: str, **options) -> Training:
    # The learning rate rises, stays constant and falls within the steps.
    schedule = ("--warmup_steps", "2", "--decay_start_step", "4" if options.get("steps", STEPS) <= STEPS else "25", "--decay_steps", "10")
    return Training((*PLACEMENTS[where], "--optimizer", optimizer, "--learning_rate", RATES[optimizer], *schedule, *flags), **options)


# Tracing a step takes most of a training's time, so each placement, optimizer, kind of data and option is in a few trainings, not in every
# combination. `updates.py` combines every optimizer with every placement.
TRAININGS = {
    "tables sgd": _training("tables", "sgd"),
    "sliced adam": _training("sliced", "adam", rows="whole"),
    "replicated adam": _training("replicated", "adam"),
    "mixed sgd": _training("mixed", "sgd"),
    "sliced adam bfloat16": _training("sliced", "adam", "--amp"),
    # From about a thousand ids on, TensorFlow uses other, multi-threaded code.
    "sliced sgd large": _training("sliced", "sgd", rows="large", batch=2048, steps=4),
    "mixed sgd of four": _training("mixed", "sgd", features=4, steps=2),
    "mixed rowwise_adagrad": _training("mixed", "rowwise_adagrad", *REGULARISED, steps=6),
    "mixed whole": _training("mixed", "adam", *WHOLE, steps=6),
    "sliced whole": _training("sliced", "rowwise_adagrad", "--amp", *WHOLE, rows="lists", steps=6),
    "tables norm large": _training("tables", "adam", *NORM, *PARALLEL, rows="large", batch=2048, steps=4, slices=8),
    "sliced norm": _training("sliced", "rmsprop", *WIDE_AND_DEEP, "--batch_norm", *CLIP, "--amp", *WHOLE, rows="lists", steps=6),
    "mixed norm on a GPU": _training("mixed", "adam", *NORM, slices=1, steps=6, gpu=True),
    "mixed norm one sum": _training("mixed", "adam", *NORM, slices=1, steps=6),
    "mixed lists": _training("mixed", "adam", rows="lists", steps=6),
    "sliced lists": _training("sliced", "rowwise_adagrad", "--amp", rows="lists", steps=6),
    "mixed shapes": _training("mixed", "rowwise_adagrad", "--interaction", "cross", "--cross_layer_projection_dim", "5", rows="shapes", steps=6),
    "tables shapes": _training("tables", "adagrad", "--interaction", "cat", rows="shapes", steps=6),
    "mixed lists on a GPU": _training("mixed", "sgd", rows="lists", slices=1, steps=6, gpu=True),
    "mixed lists one sum": _training("mixed", "sgd", rows="lists", slices=1, steps=6),
    "tables ftrl": _training("tables", "ftrl", "--embedding_learning_rate", "0.3", steps=6),
    "mixed momentum": _training("mixed", "sgd", "--momentum", "0.5", "--embedding_optimizer", "adagrad", steps=6),
    "mixed wide": _training("mixed", "rmsprop", *WIDE_AND_DEEP, steps=6),
    "mixed fm": _training("mixed", "adam", *FM, steps=6),
    "sliced fm": _training("sliced", "adagrad", *FM, "--top_mlp_dims", "1", "--amp", rows="lists", steps=6),
    "mixed finalmlp": _training("mixed", "adam", *FINALMLP, "--gate1_features", "cat_0,cat_3", "--batch_norm", steps=6),
    "sliced finalmlp": _training("sliced", "adagrad", *FINALMLP, "--gate2_features", "a,c", "--amp", rows="lists", steps=6),
    "mixed weights": _training("mixed", "adam", *NORM, rows="weighted", steps=6, slices=8),
    "sliced linear": _training("sliced", "adam", "--linear", "--linear_optimizer", "adam", steps=6),
    "mixed sgd one sum": _training("mixed", "sgd", *REGULARISED, slices=1, steps=6),
    "tables sgd of one column": _training("tables", "sgd", *CLIP, features=1, dim=1, steps=6),  # only one worker can hold a table of one column
}
# A model built as for a GPU, and the training it is compared with; tests/training/test_gpu_branches.py has the other optimizers, on one worker.
TRAININGS |= {
    "mixed sgd long": _training("mixed", "sgd", slices=1, steps=30),
    "mixed sgd on a GPU": _training("mixed", "sgd", "--xla", slices=1, steps=30, gpu=True),
}
# On two workers there is a training of every kind of model and option. Each further worker makes steps slower: on two processors, eight workers take
# about a second for a step. So more workers run what their number changes: the order of sums, the exchange of gradients, workers without tables.
ON_FOUR = (
    "mixed weights",
    "tables norm large",
    "sliced sgd large",
    "mixed sgd of four",
    "mixed rowwise_adagrad",
    "mixed shapes",
    "sliced lists",
    "tables sgd of one column",
)
ON_TWO_AND_FOUR = ("mixed weights", "tables norm large")
# References of other trainings, and models whose optimizers `updates.py` has on any number of workers.
ON_ONE = ("mixed sgd long", "mixed norm one sum", "mixed lists one sum")
CHOSEN = {
    1: tuple(TRAININGS),
    2: tuple(name for name in TRAININGS if name in ON_TWO_AND_FOUR or name not in (*ON_ONE, *ON_FOUR)),
    3: ("tables sgd", "mixed shapes"),
    4: ON_FOUR,
    8: ("mixed weights",),
}


class Recorder:
    """A wrapper of Horovod's module that counts the bytes that this worker sends to others in each collective."""

    def __init__(self, horovod):
        self._horovod = horovod
        self.calls: list[tuple[str, str, int]] = []  # operation, name, bytes

    def __getattr__(self, name):
        return getattr(self._horovod, name)

    def _note(self, operation, name, tensor, elements):
        import tensorflow as tf

        width = tf.as_dtype(tensor.dtype).size

        def note(count):
            self.calls.append((operation, name, int(count) * width))

        tf.py_function(note, [elements], [])

    def alltoall(self, tensor, splits, name):
        import tensorflow as tf

        splits = tf.convert_to_tensor(splits, tf.int32)
        self._note("alltoall", name, tensor, tf.reduce_sum(splits) - splits[self.rank()])
        return self._horovod.alltoall(tensor, splits=splits, name=name)

    def allgather(self, tensor, name):
        import tensorflow as tf

        self._note("allgather", name, tensor, tf.size(tensor) * (self.size() - 1))
        return self._horovod.allgather(tensor, name=name)

    def allreduce(self, tensor, op, name):
        import tensorflow as tf

        # A ring: every part is sent on N - 1 times to be summed, and every sum N - 1 times; each part counts as the largest one.
        self._note("allreduce", name, tensor, -(-tf.size(tensor) // self.size()) * 2 * (self.size() - 1))
        return self._horovod.allreduce(tensor, op=op, name=name)


def pieces(model):
    """Return the worker's part of every weight, by "name@first column"."""
    from training.state import arrays, parts

    shapes = arrays(model)
    return {f"{part.array}@{(part.columns or (0,))[0]}": np.array(part.read(0, shapes[part.array].shape[0])) for part in parts(model)}


def train(training: Training, dataset: Path, world) -> dict:
    """Run one configuration; return its results by name."""
    os.environ["DLRM_BUILD_FOR"] = "GPU" if training.gpu else "CPU"
    from dataloading.batches import BatchReader, Share
    from dataloading.feature_spec import FeatureSpec
    from dataloading.tf_raw import TfRawSplit
    from model.architectures import architecture_of
    from model.build import Precision, build_model
    from model.embedding.plan import report
    from run.devices import compute_dtype
    from run.placing import place_tables
    from run.tables import tables_and_features, with_widths
    from training.build import build_trainer
    from training.device_batch import to_device
    from training.evaluator import Evaluator
    from training.state import check_equal
    from utils.dialects.command_line import parse

    size = ("--batch_size", str(training.batch), "--gradient_slices", str(training.slices))
    dims = (*DIMS, "--embedding_dim", str(training.dim), "--bottom_mlp_dims", f"16,{training.dim}")
    config = parse(["--dataset_path", str(dataset), "--cpu", *size, *dims, *training.flags], "")
    folder = dataset / "of" / training.rows
    spec = FeatureSpec.from_yaml(folder / "feature_spec.yaml")
    categorical = spec.categorical[: training.features]
    config = with_widths(config, categorical)
    tables, features = tables_and_features(config, categorical, [feature.cardinality for feature in categorical], len(spec.numerical))
    placement = place_tables(config, tables, world.size, memory=1e9, features=features)
    dtype = compute_dtype(config.device, "CPU")
    precision = Precision(dtype, config.device.xla)
    model = build_model(config.model, placement, world, len(spec.numerical), 5, precision)
    trainer = build_trainer(config, model, dtype)
    found = {f"before/{name}": values for name, values in pieces(model).items()}

    def batches(split, batch_size, epochs):
        view, trains = model.embedding.view, split.name == "train"
        share = Share(view.global_features, view.local_features, rank=world.rank, num_workers=world.size)
        reader = BatchReader(split, batch_size, share, for_training=trains)
        return (to_device(batch) for epoch in range(epochs) for batch in reader.epoch(epoch))

    calls = world.horovod.calls if world.horovod else []
    with contextlib.closing(TfRawSplit(spec, "train")) as split:
        losses = []
        for step, batch in enumerate(itertools.islice(batches(split, training.batch, training.steps), training.steps)):
            calls.clear()
            losses.append(float(trainer.step(batch, step, trainer.learning_rates(step))))
        found["losses"], found["calls"] = np.array(losses), json.dumps(calls)
        found["files"] = sorted(path.name for path in open_files() if path.parent == folder / "train")
    check_equal(model)
    found |= {f"after/{name}": values for name, values in pieces(model).items()}
    architecture, rule = architecture_of(config.model), trainer.groups.tables[-1].rule
    dense = architecture.dense_elements(config.model, len(spec.numerical), placement.widths)
    normalised = sum(architecture.normalised(config.model, len(spec.numerical)))
    found["plan"] = json.dumps(report(placement, training.batch, 2 if config.device.amp else 4, dense, rule.needs_squares, normalised))
    if training.batch == BATCH and training.features is None:
        with contextlib.closing(TfRawSplit(spec, "test")) as split:
            scores = Evaluator(model, config.device.xla).score(batches(split, 2 * BATCH, 1), split.num_samples)
        if world.first:
            found["logits"], found["labels"] = scores.logits, scores.labels
    found["diverged"] = diverged(model, world)
    return found


def open_files() -> list[Path]:
    """Return the paths of the files that this process has open."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as is the descriptor that listed them
            paths.append(Path(os.readlink(f"/proc/self/fd/{number}")))
    return paths


def diverged(model, world) -> str:
    """Change the last worker's dense weights a little; return the message of `check_equal`, empty where it raises nothing."""
    from training.state import check_equal
    from utils.cluster.agreement import DivergedError

    if world.rank == world.size - 1:
        bias = next(iter(model.dense_weights().values())).value
        bias.assign(bias + 1e-6)
    try:
        check_equal(model)
    except DivergedError as error:
        return str(error)
    return ""


def main(dataset: str, folder: str) -> None:
    """Train on a dataset and write this worker's results to a folder."""
    from run.devices import configure_tensorflow
    from utils.config.device import DeviceConfig
    from utils.distributed import join
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    import tensorflow as tf

    world = join()
    configure_tensorflow(DeviceConfig(cpu=True), world.local_rank, world.local_size)
    if world.horovod:
        world.horovod = Recorder(world.horovod)
    found = {"threads": tf.config.threading.get_intra_op_parallelism_threads()}
    if world.size in (1, 2, 4):
        found |= updated(world)
    usual = gc.get_threshold()
    gc.set_threshold(100_000)  # a trace makes many objects, and looking for garbage among them again and again takes a tenth of the time
    for name in CHOSEN[world.size]:
        found |= {f"{name}/{key}": value for key, value in train(TRAININGS[name], Path(dataset), world).items()}
    gc.set_threshold(*usual)
    np.savez(Path(folder) / f"{world.rank}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
