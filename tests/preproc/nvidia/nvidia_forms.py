"""What checkpoints of NVIDIA's models are made of in tests, and how they are damaged."""

import json
from dataclasses import replace

import numpy as np
import tensorflow as tf

from dataloading.feature_spec import generator_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from preproc import nvidia_checkpoint

CARDINALITIES = (50, 300, 7, 50)  # two alike: where tables are sorted by size, the first of them stays the first
ROWS = {"train": 600, "test": 200}


def write_dataset(folder, numerical=3, cardinalities=CARDINALITIES, **facts):
    """A tf_raw dataset of these features; `facts` of all categorical features, or a list of one of each, are the specification's.

    `numerical` is a number, or names.
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
    """Inputs of an MLP, to a multiple of 8."""
    return -(-count // 8) * 8


class Dense(tf.Module):
    """What a layer `Dense` is to a TensorFlow checkpoint."""

    def __init__(self, kernel, bias):
        super().__init__()
        self.kernel, self.bias = tf.Variable(kernel), tf.Variable(bias)


def paths(source, dataset, target):
    """The importer's flags."""
    return "--nvidia_checkpoint", source, "--dataset_path", dataset, "--save_checkpoint_path", target


def edit(file, **changes):
    """Change keys of a JSON file."""

    def change(folder):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def resave(file, change):
    """Change a NumPy file's array."""
    return lambda folder: np.save(folder / file, change(np.load(folder / file)))


def remove(pattern):
    """Remove files."""
    return lambda folder: [path.unlink() for path in list(folder.glob(pattern))]


def write(file, content):
    """Replace a file's bytes."""
    return lambda folder: (folder / file).write_bytes(content)


def cut(file):
    """Cut a file's last bytes off."""
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-3])


def check_refused(call, source, dataset, message, *flags):
    """The importer ends with this one line and writes nothing."""
    target = source.parent / "ours"
    code, out, err = call(nvidia_checkpoint.main, *paths(source, dataset, target), *flags)
    assert (code, out) == (1, "") and err.startswith("command: error: ") and err.count("\n") == 1, err
    assert message in err
    assert not [path for path in target.rglob("*") if path.is_file()]
