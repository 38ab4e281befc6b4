"""Parts of checkpoints of NVIDIA's models for tests, and ways to damage them."""

import json
from dataclasses import replace

import numpy as np
import tensorflow as tf

from dataloading.feature_spec import generator_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from preproc import nvidia_checkpoint

CARDINALITIES = (50, 300, 7, 50)  # the first and the last are equal: the sort of tables by size must keep their order
ROWS = {"train": 600, "test": 200}


def write_dataset(folder, numerical=3, cardinalities=CARDINALITIES, **facts):
    """Write a tf_raw dataset; return its folder.

    Args:
        folder: of the dataset.
        numerical: the number of numerical features, or their names.
        cardinalities: of the categorical features.
        facts: further keys of the categorical features in the specification: a value for all, or a list of one for each.
    """
    spec = generator_spec(cardinalities, numerical if isinstance(numerical, int) else len(numerical), 1.2)
    spec = spec if isinstance(numerical, int) else replace(spec, numerical=tuple(numerical), dtypes=dict.fromkeys(numerical, "float16"))
    given = [{name: fact[i] if isinstance(fact, list) else fact for name, fact in facts.items()} for i in range(len(cardinalities))]
    spec = replace(spec, categorical=tuple(replace(feature, **one) for feature, one in zip(spec.categorical, given, strict=True)))
    with TfRawWriter(folder, spec, tuple(ROWS)) as writer:
        for split, count in ROWS.items():
            numbers, ids, labels, _ = SyntheticSplit(spec, split, count, seed=1).read_rows(0, count)
            writer.append(split, numbers, ids, labels)
        writer.publish({})
    return folder


def padded(count):
    """Round an MLP's number of inputs up to a multiple of 8."""
    return -(-count // 8) * 8


class Dense(tf.Module):
    """A module with the variables of a layer `Dense`, as a TensorFlow checkpoint sees it."""

    def __init__(self, kernel, bias):
        super().__init__()
        self.kernel, self.bias = tf.Variable(kernel), tf.Variable(bias)


def paths(source, dataset, target):
    """Return the importer's flags."""
    return "--nvidia_checkpoint", source, "--dataset_path", dataset, "--save_checkpoint_path", target


def edit(file, **changes):
    """Return a change of keys of a JSON file, to be called with the folder."""

    def change(folder):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def resave(file, change):
    """Return a change of a NumPy file's array, to be called with the folder."""
    return lambda folder: np.save(folder / file, change(np.load(folder / file)))


def remove(pattern):
    """Return a removal of files by a pattern, to be called with the folder."""
    return lambda folder: [path.unlink() for path in list(folder.glob(pattern))]


def write(file, content):
    """Return a replacement of a file's bytes, to be called with the folder."""
    return lambda folder: (folder / file).write_bytes(content)


def cut(file):
    """Return a cut of a file's last 3 bytes, to be called with the folder."""
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-3])


def check_refused(call, source, dataset, message, *flags):
    """Check that the importer ends with this message in one line, and writes nothing."""
    target = source.parent / "ours"
    code, out, err = call(nvidia_checkpoint.main, *paths(source, dataset, target), *flags)
    assert (code, out) == (1, "") and err.startswith("command: error: ") and err.count("\n") == 1, err
    assert message in err
    assert not [path for path in target.rglob("*") if path.is_file()]
