"""Memory-mapped tables: rows of an array are read from the files of its chunks without copying these to memory."""

import json
import mmap
from pathlib import Path

import numpy as np

from utils.checkpoint.chunks import Chunks
from utils.checkpoint.contiguous import Contiguous, fits
from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import table_and_kind
from utils.checkpoint.zarr_metadata import NAME, check_metadata
from utils.checkpoint.zarr_store import CHECKSUM_BYTES, file_of
from utils.config.serving import FLOAT32
from utils.forks import RenewedLock
from utils.initial_rows import Draw, numbers_of_rows


class MappedArray:
    """A mapped array `[V, D]` of a checkpoint; thread-safe. The chunks' checksums are not compared, for that would read all of them.

    Of a table of which the checkpoint stores the touched rows, these are mapped, and all others are drawn anew by each call.

    Args:
        checkpoint: the open checkpoint.
        name: the array's name.
        draw: draws the numbers of untouched rows, see `utils.initial_rows`.

    Attributes:
        shape: V and D.
        partial: True where only the touched rows are stored, so that `rows` is the only way to the table.

    Raises:
        CheckpointError: the checkpoint has no such array, or its files are damaged.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, draw: Draw = numbers_of_rows):
        self._checkpoint, self.shape = checkpoint, checkpoint.shape(name)
        self._folder, self._lock = checkpoint.folder / file_of(name), RenewedLock()
        self._view: tuple[Contiguous | None, np.ndarray | None] | None = None
        self._mapped: dict[tuple[int, int], np.ndarray] = {}
        table, kind = table_and_kind(name)
        self._touched = checkpoint.touched_table(table)
        self.partial = self._touched is not None
        self._stored = self.shape
        if self._touched is not None:
            self._touched.check()
            self._stored, self._untouched = (self._touched.count, *self.shape[1:]), self._touched.untouched(kind, draw=draw)
        self._chunk = self._described() if self._stored[0] else (1, 1)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows by their numbers, `[n] -> [n, D]` float32."""
        if self._touched is None:
            return self._stored_rows(numbers)
        stored, places = self._touched.located(numbers)
        if stored.all() and len(stored):
            return self._stored_rows(places)
        found, others = np.empty((len(numbers), self.shape[1]), np.float32), np.asarray(numbers, np.int64)[~stored]
        drawn = np.empty((len(others), self.shape[1]), np.float32)
        self._untouched.at(others, drawn)
        found[~stored] = drawn
        if len(others) < len(numbers):
            found[stored] = self._stored_rows(places[stored])
        return found

    def chunks(self) -> Chunks:
        """Return the array's memory, valid as long as this object.

        Raises:
            CheckpointError: a file is missing or too short.
            NotImplementedError: the array is `partial`.
        """
        whole = self.whole()
        if whole is not None:
            return Chunks([whole], FLOAT32)
        (rows, columns), (high, width) = self.shape, self._chunk
        return Chunks([self._values(row, column) for row in range(-(-rows // high)) for column in range(-(-columns // width))], FLOAT32)

    def whole(self) -> np.ndarray | None:
        """Return all rows as one array, where the chunks can be mapped one after another; None where they cannot. Raises as `chunks`."""
        if self.partial:
            raise NotImplementedError(f"{self._folder}: only its touched rows are stored, so it has no memory of all rows; use `rows`")
        return self._viewed()

    def _described(self) -> tuple[int, int]:
        """Check the description of the stored array, and return the shape of its chunks."""
        try:
            check_metadata(self._folder)
            described = json.loads((self._folder / NAME).read_bytes())
            if tuple(described["shape"]) != self._stored:
                raise ValueError(f"shape {described['shape']}, the manifest says {list(self._stored)}")
        except (OSError, ValueError) as error:
            raise DamagedError(self._checkpoint.folder, f"{self._folder}: {error}; the checkpoint is damaged") from None
        return tuple(described["chunk_grid"]["configuration"]["chunk_shape"])

    def _stored_rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows of the stored array by their numbers there."""
        high, width = self._chunk
        whole = self._viewed()
        if whole is not None:
            return whole[numbers]
        found = np.empty((len(numbers), self.shape[1]), np.float32)
        order = np.argsort(numbers // high, kind="stable")
        places, chosen = np.divmod(numbers[order], high)
        edges = np.flatnonzero(np.diff(places)) + 1
        for start, stop in zip([0, *edges], [*edges, len(order)], strict=True):
            if start == stop:
                continue
            for column in range(0, self.shape[1], width):
                values = self._values(int(places[start]), column // width)[chosen[start:stop], : self.shape[1] - column]
                found[order[start:stop], column : column + width] = values
        return found

    def _viewed(self) -> np.ndarray | None:
        """Return the stored array as one, or None, see `whole`."""
        if self._view is None:
            with self._lock:  # a second mapping would replace and unmap the first one while another thread reads it
                self._view = self._view or self._side_by_side()
        return self._view[1]

    def _side_by_side(self) -> tuple[Contiguous | None, np.ndarray | None]:
        high, width = self._chunk
        count, size = -(-self._stored[0] // high), 4 * high * width
        if width < self.shape[1] or not (count == 1 or fits(size)):
            return None, None
        if count == 1:
            return None, self._values(0, 0)
        try:
            found = Contiguous([self._folder / "c" / str(row) / "0" for row in range(count)], size)
        except OSError:  # map chunk by chunk instead: then a missing one is reported when it is used, with its name
            return None, None
        return found, found.bytes.view("<f4").reshape(count * high, width)

    def _values(self, row: int, column: int) -> np.ndarray:
        """Return a chunk, mapped on first use. Two threads may map it at the same time; either mapping is valid."""
        chunk = self._mapped.get((row, column))
        if chunk is None:
            self._mapped[row, column] = chunk = self._map(self._folder / "c" / str(row) / str(column))
        return chunk

    def _map(self, path: Path) -> np.ndarray:
        size = 4 * self._chunk[0] * self._chunk[1]
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), size + CHECKSUM_BYTES, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file is shorter
            raise DamagedError(self._checkpoint.folder, f"{path}: {error}; the checkpoint is damaged") from None
        return np.frombuffer(mapped, "<f4", size // 4).reshape(self._chunk)
