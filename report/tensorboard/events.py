"""TensorBoard's event files: records of protocol buffers, flushed after each line of the log.

tensorboardX has the protocol buffers and the checksum. Its own writer hands events to a thread over a queue: after an error of the disk the thread
ends, and the tenth event after that waits for ever; a kill loses what stands in the queue. So the file is written here, by the caller's thread.
"""

import contextlib
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\..*")
_OF_PROFILER = ".profile-empty"  # TensorFlow's profiler adds a file that says nothing


class EventFile:
    """An event file, new in a folder.

    TensorBoard reads the files of a folder in the order of their names, which begin with their time.

    Args:
        folder: the folder; made if it is missing.
        run: id of the run, the end of the file's name.

    Attributes:
        path: the file.

    Raises:
        OSError: the file cannot be made or written.
    """

    def __init__(self, folder: Path, run: str):
        folder.mkdir(parents=True, exist_ok=True)
        host = re.sub(r"[^\w-]", "-", socket.gethostname())
        second = max([int(time.time()), *(int(_NAME.match(path.name)[1]) + 1 for path in event_files(folder) if _NAME.match(path.name))])
        while True:
            self.path = folder / f"events.out.tfevents.{second:010}.{host}.{os.getpid()}.{run}"
            with contextlib.suppress(FileExistsError):
                self._file = self.path.open("xb")  # open as long as the run
                break
            second += 1
        try:
            self.add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        except OSError:
            self.path.unlink()
            raise

    def start(self, step: int, wall_time: float) -> None:
        """Record that a process begins at a step: readers forget what earlier files say about this and later steps.

        TensorBoard's Python reader ignores the first such record of a folder, so a new run begins with one, too.
        """
        self.add(Event(wall_time=wall_time, step=step, session_log=SessionLog(status=SessionLog.START)))

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Add scalars by tag."""
        self.summaries(step, wall_time, [Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])])

    def summaries(self, step: int, wall_time: float, summaries: Iterable[Summary]) -> None:
        """Add summaries of a step."""
        merged = Summary()
        for summary in summaries:
            merged.MergeFrom(summary)
        if merged.value:
            self.add(Event(wall_time=wall_time, step=step, summary=merged))

    def add(self, event: Event) -> None:
        """Write an event, so that a process that is killed leaves it in the file. Raises OSError."""
        record = event.SerializeToString()
        length = struct.pack("<Q", len(record))
        try:
            self._file.write(b"".join((length, _checksum(length), record, _checksum(record))))
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def close(self) -> None:
        """Close the file. Raises OSError."""
        self._file.close()


def event_files(folder: Path) -> list[Path]:
    """Return the event files that lie directly in a folder, in the order in which TensorBoard reads them."""
    names = os.listdir(folder) if folder.is_dir() else []
    return [folder / name for name in sorted(names) if "tfevents" in name and not name.endswith(_OF_PROFILER)]


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
