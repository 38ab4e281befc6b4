"""A tf.data pipeline over a tf_raw dataset, as tf.data's guides recommend: fixed-length records of each file, zipped.

This module imports TensorFlow: call `prepare_tensorflow` first.
"""

from pathlib import Path

import tensorflow as tf

from dataloading.contract import split_files
from dataloading.feature_spec import FeatureSpec


def pipeline(spec: FeatureSpec, split: str, batch_size: int, num_batches: int, *, whole_batches: bool) -> tf.data.Dataset:
    """Return the first batches of a split: numericals `[B, M]` float16, ids `[F, B]` int32, labels `[B]` uint8.

    Args:
        spec: the dataset's specification.
        split: the split's name, such as "train".
        batch_size: the number of samples B of a batch.
        num_batches: the number of batches, each of B samples.
        whole_batches: a record holds a batch of a file instead of a sample; then a last partial batch cannot be read.
    """
    files = split_files(spec, split)

    def column(path: Path, dtype: str, width: int = 1) -> tf.data.Dataset:
        sample_bytes = tf.as_dtype(dtype).size * width
        if not whole_batches:
            records = tf.data.FixedLengthRecordDataset(str(path), sample_bytes).batch(batch_size, drop_remainder=True)
        else:
            left_over = path.stat().st_size % (sample_bytes * batch_size)
            records = tf.data.FixedLengthRecordDataset(str(path), sample_bytes * batch_size, footer_bytes=left_over)
        shape = [batch_size, width] if width > 1 else [batch_size]

        @tf.autograph.experimental.do_not_convert
        def decode(record):
            return tf.reshape(tf.io.decode_raw(record, dtype), shape)

        return records.map(decode, num_parallel_calls=tf.data.AUTOTUNE)

    ids = tuple(column(path, feature.dtype) for feature, path in zip(spec.categorical, files.categorical, strict=True))
    numerical, label = column(files.numerical, "float16", len(spec.numerical)), column(files.label, "uint8")
    zipped = tf.data.Dataset.zip((numerical, ids, label))

    @tf.autograph.experimental.do_not_convert
    def together(numerical, ids, label):
        return numerical, tf.stack([tf.cast(column, tf.int32) for column in ids]), label

    return zipped.map(together, num_parallel_calls=tf.data.AUTOTUNE).take(num_batches).prefetch(tf.data.AUTOTUNE)
