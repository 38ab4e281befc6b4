"""Notices that the launcher is gone (horovodrun, mpirun), so that no worker trains on for nobody and keeps the folder of its checkpoints locked.

horovodrun becomes `sh -c "mpirun …"`, and that shell passes no signal on: mpirun and the workers outlive it. So a worker watches, of the processes
that it descends from, mpirun (`orted` on other hosts) and the shell that horovodrun became, and never what started that: the user's shell may go
at any time, under nohup for instance. Under `horovodrun --gloo` it watches horovodrun itself. Slurm's srun ends its own workers; they watch nothing.
"""

import contextlib
import ctypes
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from utils import launch, streams
from utils.cluster.signals import StopRequest

CODE = 143  # as after SIGTERM
POLL_S = 0.2  # mpirun gives a worker that is to end a second or two
# How long a worker may be without a step, a batch or a chunk of its own when the launcher is gone; then another one has died, for which it would
# wait for ever. Less would cut short a save in which one worker has much more to write than this one, or the sort of a billion scores.
GRACE_S = 600.0

_PROC = Path("/proc")
_MPI = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "orted", "prterun", "prted", "hydra_pmi_proxy"}
_INTERPRETER = re.compile(r"(ba|da|k|z)?sh|perl|python[\d.]*")  # of a script that stands for mpirun
_BY_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_BY_GLOO = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_OF_HOROVODRUN = re.compile(r"mpirun (--allow-run-as-root --tag-output|-l) -np \d")  # how it begins the command line of mpirun


@dataclass(frozen=True)
class Process:
    """A process: its number, which another may have later, and what tells it from that other one."""

    number: int
    started: int  # in clock ticks since the machine started
    parent: int
    session: int
    words: tuple[str, ...]  # its command

    @classmethod
    def of(cls, number: int) -> "Process | None":
        """None where it has ended or cannot be seen."""
        try:
            text = (_PROC / str(number) / "stat").read_bytes().decode(errors="replace")
            words = (_PROC / str(number) / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return None
        state, parent, _, session, *rest = text.rpartition(")")[2].split()  # its name stands before that and may hold anything
        return None if state in "ZX" else cls(number, int(rest[15]), int(parent), int(session), tuple(words.rstrip("\0").split("\0")))

    @property
    def ended(self) -> bool:
        """Whether it has ended, reaped by its parent or not."""
        now = Process.of(self.number)
        return now is None or now.started != self.started

    @property
    def name(self) -> str:
        """What a user calls it."""
        return self.program[0] if self.is_mpi else "horovodrun"

    @property
    def is_mpi(self) -> bool:
        """Whether it is mpirun or its daemon on another host; also a script of that name."""
        return self.program[0] in _MPI

    @property
    def program(self) -> list[str]:
        """The program and its arguments, without the interpreter of a script; the program without its folder."""
        words = self.words[1:] if len(self.words) > 1 and _INTERPRETER.fullmatch(Path(self.words[0]).name) else self.words
        return [Path(words[0]).name, *words[1:]]

    @property
    def was_horovodrun(self) -> bool:
        """Whether it is the shell that horovodrun has become."""
        return len(self.words) == 3 and self.words[1] == "-c" and _OF_HOROVODRUN.match(self.words[2]) is not None

    @property
    def is_horovodrun(self) -> bool:
        """Whether it is horovodrun, where that stays: under Gloo."""
        return self.program[0] == "horovodrun" or "horovod.runner.launch" in self.words[:4]


def ancestors() -> Iterator[Process]:
    """This process's parent, its parent, and so on."""
    process = Process.of(os.getppid())
    while process is not None:
        yield process
        process = Process.of(process.parent) if process.parent else None


def launchers(line: list[Process], variables: Mapping[str, str]) -> list[Process]:
    """Which of a worker's ancestors, nearest first, are its launcher; empty where it was started without one that stays.

    Args:
        line: the ancestors.
        variables: the worker's environment.
    """
    if any(name in variables for name in _BY_MPI):
        first = next((i for i, process in enumerate(line) if process.is_mpi), len(line))
        last = next((i for i in range(first, len(line)) if not line[i].is_mpi), len(line))
        return line[first : last + 1 if last < len(line) and line[last].was_horovodrun else last]
    if _BY_GLOO in variables:
        top = next((i for i, process in enumerate(line) if process.is_horovodrun), None)
        return [] if top is None else [process for process in line[:top] if "--multiprocessing-fork" in process.words] + [line[top]]
    return []


def left_behind(watched: list[Process], line: list[Process]) -> bool:
    """Whether horovodrun was gone before anybody could watch it: mpirun is as it started it, but now the child of one of another session.

    Not so where /bin/sh becomes the command of `-c` instead of waiting for it: then horovodrun has become mpirun itself.
    """
    if not watched or not _OF_HOROVODRUN.match(" ".join(watched[-1].program)):
        return False
    mother = next((process for process in line if process.number == watched[-1].parent), None)
    if mother is None or mother.session == watched[-1].session:
        return False
    with contextlib.suppress(OSError):
        found = subprocess.run(["/bin/sh", "-c", "cat /proc/self/stat"], capture_output=True, text=True).stdout.rpartition(")")[2].split()
        return len(found) > 1 and int(found[1]) != os.getpid()
    return False


def watch(command: str) -> None:
    """From now on, end this worker in an orderly way when its launcher is gone.

    Training finishes the step and saves, as after a signal; anything else ends at once, with code 143.

    Args:
        command: what its last line starts with.
    """
    line = list(ancestors())
    watched = launchers(line, os.environ)
    if watched:
        threading.Thread(target=_watch, args=(watched, left_behind(watched, line), command), name="launcher", daemon=True).start()


def _watch(watched: list[Process], gone: bool, command: str) -> None:
    reason = "the launcher (horovodrun) is gone"
    while not gone:
        time.sleep(POLL_S)
        for process in reversed(watched):
            if process.ended:
                reason, gone = f"the launcher ({process.name}, process {process.number}) is gone", True
                break
    drop_broken_outputs()
    if launch.local_size() == launch.size():  # orted ends those of other hosts soon; without them nothing can be saved
        hold_off_abort()
    if not StopRequest.ask(reason):
        _end(command, f"{reason}, so this run ends" if launch.rank() == 0 else None)
    noticed = time.monotonic()
    while time.monotonic() - max(noticed, launch.progressed_at()) < GRACE_S:
        time.sleep(1)
    _end(command, f"worker {launch.rank()}: {reason}, and nothing has moved for {GRACE_S:g} s: this worker ends without saving")


def drop_broken_outputs() -> None:
    """Write to nowhere what would have gone to a launcher that is gone: a line that cannot be written is no reason not to save."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if poll.poll(0):  # an error or the other side's end, of which it always tells
                streams.silence(stream)


def hold_off_abort() -> None:
    """Open MPI ends a process a second after it has lost mpirun; make it wait, so that there is time to save."""
    with contextlib.suppress(OSError, ValueError):  # not loaded yet, or another version
        library = ctypes.CDLL("libopen-pal.so.40", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        ctypes.c_int.in_dll(library, "opal_abort_delay").value = int(2 * GRACE_S)


def _end(command: str, message: str | None) -> None:
    if message is not None and sys.stderr is not None:  # None where it was closed: its number may be another file's now
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            os.write(sys.stderr.fileno(), f"{command}: error: {message}\n".encode())
    os._exit(CODE)
