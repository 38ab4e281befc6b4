"""Reading of single TFRecords by position, their checksums compared."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataloading.features import DatasetError
from dataloading.tfrecord.index import DAMAGED

_OPEN_FILES = 64


class RecordReader:
    """A reader of the records of some files; it keeps at most 64 files open."""

    def __init__(self, files: Sequence[Path]):
        self._files = files
        self._open: dict[int, Any] = {}

    def read(self, file: int, offset: int, size: int, place: str) -> bytes:
        """Return the content of a record.

        Args:
            file: the index of the file.
            offset: position of the record in the file, in bytes.
            size: bytes of its content when the file was indexed.
            place: place of the record, for messages.

        Raises:
            DatasetError: the record is damaged, or the file has changed.
        """
        import tensorflow as tf
        from tensorflow.python.lib.io.tf_record import tf_record_random_reader  # the only reader of TensorFlow with random access

        try:
            if file not in self._open:
                while len(self._open) >= _OPEN_FILES:
                    self._open.pop(next(iter(self._open))).close()
                self._open[file] = tf_record_random_reader(str(self._files[file]))
            content, _ = self._open[file].read(offset)
        except (tf.errors.OpError, IndexError) as error:
            raise DatasetError(f"{place}: {reason(error)}; {DAMAGED}") from None
        if len(content) != size:
            raise DatasetError(f"{place}: {len(content)} bytes, {size} when this run started; the file has changed")
        return content

    def close(self) -> None:
        """Close every file."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()


def reason(error: Exception) -> str:
    """Return TensorFlow's message without the names of its operations: `truncated record at 116`."""
    return re.sub(r"\{\{.*?\}\} |' failed with.*| \[Op:.*", "", " ".join(str(error).split()))[:80]
