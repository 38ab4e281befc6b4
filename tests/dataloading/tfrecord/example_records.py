"""TFRecords as NVIDIA's two pipelines for Wide & Deep write them, made with `tf.train.Example` alone."""

import numpy as np
import tensorflow as tf

from dataloading.tfrecord.spec import outbrain_spec

OUTBRAIN = outbrain_spec()


def example(columns) -> bytes:
    """Serialize an Example: columns of floating-point numbers as float lists, others as int64 lists."""
    feature = {}
    for name, column in columns.items():
        if np.asarray(column).dtype.kind == "f":
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=column))
        else:
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=column))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_file(path, records) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for columns in records:
            writer.write(example(columns))


def outbrain_columns(count, seed=0, float_label=False):
    """Draw rows of the 26 features, the label and the display; return the columns by name."""
    draw = np.random.default_rng(seed)
    columns = {feature.name: draw.integers(0, feature.cardinality, count) for feature in OUTBRAIN.categorical}
    columns |= {name: draw.random(count, np.float32) for name in OUTBRAIN.numerical}
    columns["label"] = draw.integers(0, 2, count).astype(np.float32 if float_label else np.int64)
    columns["display_id"] = np.arange(count) // 5 + 10_000_000
    return columns


def write_split(folder, columns, sizes, files) -> None:
    """Write records of the given sizes, spread over the files in order."""
    ends = np.cumsum(sizes)
    records = [{name: column[end - size : end] for name, column in columns.items()} for end, size in zip(ends, sizes, strict=True)]
    for i in range(files):
        write_file(folder / f"part-r-{i:05d}", records[i * len(records) // files : (i + 1) * len(records) // files])


def write_outbrain(folder, sizes=(64, 64, 64, 64, 17), eval_sizes=(64, 9), float_label=False, extra=None):
    """Write a folder in NVIDIA's layout, whose records have fewer rows than NVIDIA's 4,096; return the columns of each split."""
    found = {}
    for seed, (name, records, files) in enumerate((("train", sizes, 2), ("eval", eval_sizes, 1))):
        count = sum(records)
        found[name] = outbrain_columns(count, seed, float_label) | ({} if extra is None else extra(count))
        write_split(folder / name, found[name], records, files)
    return found
