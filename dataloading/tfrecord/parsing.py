"""Parsing of pre-batched TFRecords to columns: records are read by position, their checksums compared, and parsed by TensorFlow's threads."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.ranges import outside_range
from dataloading.tfrecord.example_bytes import FLOAT, INT64, count_values, features_of
from dataloading.tfrecord.index import RecordIndex
from dataloading.tfrecord.record_reader import RecordReader, reason
from utils.runtime import prepare_tensorflow

_AT_ONCE = 64  # records parsed together, whose bytes and values are in memory at the same time
_KEPT_BYTES = 64 << 20  # cache of records whose other columns may be requested next


@dataclass(frozen=True)
class Column:
    """Features of one kind that are requested together: the ids of one feature, all numericals, the label, or the group."""

    names: tuple[str, ...]
    kind: str  # INT64 or FLOAT
    alike: str  # columns with the same value are parsed together, because the same rows of them are requested


def columns_of(spec: FeatureSpec, labelled: bool, kinds: Mapping[str, str], place: str) -> dict[str, Column]:
    """Return the columns read from each record: `ids 0`, …, `numerical`, `label`, `group`, `weight`.

    Args:
        spec: the features.
        labelled: whether the label is one of them.
        kinds: kinds of the features of the first record. A label may have either kind: NVIDIA's two pipelines differ.
        place: place of that record, for messages.

    Raises:
        DatasetError: the record lacks a feature, or a feature has another kind.
    """
    columns = {f"ids {i}": Column((feature.name,), INT64, "ids") for i, feature in enumerate(spec.categorical)}
    if spec.numerical:
        columns["numerical"] = Column(spec.numerical, FLOAT, "others")
    if labelled:
        columns["label"] = Column((spec.label,), FLOAT if kinds.get(spec.label) == FLOAT else INT64, "others")
    if spec.group is not None:
        columns["group"] = Column((spec.group,), INT64, "others")
    if labelled and spec.weight is not None:
        columns["weight"] = Column((spec.weight,), FLOAT, "others")
    for column in columns.values():
        for name in column.names:
            if kinds.get(name) != column.kind:
                raise DatasetError(_mismatch(spec, name, column.kind, kinds, place))
    return columns


def _mismatch(spec: FeatureSpec, name: str, kind: str, kinds: Mapping[str, str], place: str) -> str:
    if kinds.get(name):
        return f"{place}: feature {name} is a list of {kinds[name]}, expected {kind}"
    wanted = f"{spec.path} lists it" if spec.path and spec.path.exists() else "NVIDIA's Outbrain data has it"
    return f"{place}: no feature {name}, but {wanted}; list the features of the records in a feature_spec.yaml beside them"


class RecordParser:
    """A parser that returns columns of records.

    Args:
        spec: the features.
        columns: the result of `columns_of`.
        index: the index of the records.
    """

    def __init__(self, spec: FeatureSpec, columns: Mapping[str, Column], index: RecordIndex):
        self._spec, self._columns, self._index = spec, columns, index
        self._bytes: dict[int, bytes] = {}
        self._reader = RecordReader(index.files)

    def columns(self, records: Sequence[int], keys: Sequence[str]) -> dict[int, dict[str, np.ndarray]]:
        """Return the columns with these keys for each record: `[rows]`, and `[rows, M]` for the numericals.

        Ids have the smallest type for the cardinality, or int64 if an id is out of range.

        Raises:
            DatasetError: a record is damaged, lacks a feature, or has lists of different lengths; a label is not 0 or 1, or a group does not fit
                its type (the message names file, record, feature, row and value).
        """
        for record in set(self._bytes) - set(records):
            del self._bytes[record]
        by_rows, found = defaultdict(list), defaultdict(dict)
        for record in records:
            by_rows[self._index.rows(record)].append(record)
        for rows, alike in by_rows.items():
            for i in range(0, len(alike), _AT_ONCE):
                some = alike[i : i + _AT_ONCE]
                values = self._parsed(some, rows, keys)
                for key in keys:
                    block = self._converted(key, [values[name] for name in self._columns[key].names], some)
                    for record, part in zip(some, block, strict=True):
                        found[record][key] = part
        return found

    def close(self) -> None:
        """Close every file."""
        self._reader.close()
        self._bytes.clear()

    def _parsed(self, records: Sequence[int], rows: int, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Parse each feature of these columns: `[records, rows]`, int64 or float32."""
        prepare_tensorflow()
        import tensorflow as tf

        kinds = {name: self._columns[key].kind for key in keys for name in self._columns[key].names}
        contents = [self._content(record) for record in records]
        form = {name: tf.io.FixedLenFeature([rows], tf.float32 if kind == FLOAT else tf.int64) for name, kind in kinds.items()}
        try:
            with tf.device("/CPU:0"):
                return {name: values.numpy() for name, values in tf.io.parse_example(contents, form).items()}
        except (tf.errors.OpError, UnicodeDecodeError) as error:  # UnicodeDecodeError if TensorFlow's message quotes damaged bytes
            for record, content in zip(records, contents, strict=True):  # finds the record at fault, which TensorFlow's message does not name
                self._check(record, content, kinds)
            place = f"{self._index.place(records[0])} to {self._index.place(records[-1])}"
            raise DatasetError(f"{place}: cannot be parsed: {reason(error)}") from None

    def _check(self, record: int, content: bytes, kinds: dict[str, str]) -> None:
        """Raise DatasetError unless a record holds these features with one value for each row."""
        place, rows = self._index.place(record), self._index.rows(record)

        def read(start: int, stop: int) -> bytes:
            return content[start:stop]

        try:
            found = {feature.name: feature for feature in features_of(read, len(content))}
            for name, kind in kinds.items():
                if name not in found or found[name].kind != kind:
                    raise DatasetError(_mismatch(self._spec, name, kind, {other.name: other.kind for other in found.values()}, place))
                if (count := count_values(read, found[name])) != rows:
                    raise DatasetError(f"{place}: feature {name} has {count} values, others have {rows}; expected one per row")
        except ValueError as error:
            raise DatasetError(f"{place}: not a tf.train.Example: {error}; the record is damaged or has another format") from None

    def _content(self, record: int) -> bytes:
        """Return the bytes of a record, its checksum compared."""
        if record in self._bytes:
            return self._bytes[record]
        index = self._index
        content = self._reader.read(int(index.file_of[record]), int(index.offset[record]), int(index.size[record]), index.place(record))
        if sum(map(len, self._bytes.values())) + len(content) <= _KEPT_BYTES:
            self._bytes[record] = content
        return content

    def _converted(self, key: str, values: list[np.ndarray], records: Sequence[int]) -> Iterable[np.ndarray]:
        """Return a column in its final type for each record: `[rows]`, or `[rows, M]` for the numericals."""
        if key == "numerical":
            with np.errstate(over="ignore"):  # overflow of float16 gives infinity, which the callers' checks of values find
                return np.stack(values, axis=-1).astype(self._spec.numerical_dtype, copy=False)
        (block,) = values
        if key == "label":
            self._refuse(~((block == 0) | (block == 1)), block, records, self._spec.label, "label {} is not 0 or 1")
            return block.astype(np.uint8)
        if key == "group":
            fitting = block.astype(self._spec.group_dtype)
            self._refuse(fitting != block, block, records, self._spec.group, f"{{}} does not fit {self._spec.group_dtype}")
            return fitting
        if key == "weight":
            return block.astype(self._spec.weight_dtype, copy=False)
        feature = self._spec.categorical[int(key.split()[1])]
        return block if outside_range(block.reshape(-1), feature.cardinality) is not None else block.astype(feature.dtype)

    def _refuse(self, bad: np.ndarray, block: np.ndarray, records: Sequence[int], name: str, what: str) -> None:
        """Raise DatasetError for the first bad value; `bad` and `block` are both `[records, rows]`."""
        if bad.any():
            record, row = divmod(int(np.argmax(bad)), block.shape[1])
            place, first = self._index.place(records[record]), int(self._index.first_row[records[record]])
            raise DatasetError(f"{place}: feature {name}, row {first + row}: {what.format(block[record, row])}")
