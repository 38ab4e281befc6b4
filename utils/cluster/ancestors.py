"""Which of the processes that a worker descends from are its launcher.

horovodrun becomes `sh -c "mpirun …"`, and that shell passes no signal on: mpirun and the workers outlive it. So a worker watches, of the processes
that it descends from, mpirun (`orted` on other hosts) and the shell that horovodrun became, and never what started that: the user's shell may go
at any time, under nohup for instance. Under `horovodrun --gloo` it watches horovodrun itself. Slurm's srun ends its own workers; they watch nothing.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from utils.cluster.processes import ended

_MPI = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "orted", "prterun", "prted", "hydra_pmi_proxy"}
_INTERPRETER = re.compile(r"(ba|da|k|z)?sh|perl|python[\d.]*")  # of a script that stands for mpirun
_BY_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_BY_GLOO = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_OF_HOROVODRUN = re.compile(r"mpirun (--allow-run-as-root --tag-output|-l) -np \d")  # how it begins the command line of mpirun


@dataclass(frozen=True)
class Process:
    """A process, as it was seen."""

    number: int
    parent: int
    session: int
    words: tuple[str, ...]  # its command
    handle: psutil.Process | None = None  # which tells it from a later one of its number

    @classmethod
    def of(cls, number: int) -> "Process | None":
        """None where it has ended or cannot be seen."""
        try:
            handle = psutil.Process(number)
            seen = cls(number, handle.ppid(), os.getsid(number), tuple(handle.cmdline()) or ("",), handle)
        except (psutil.Error, OSError):
            return None
        return None if ended(handle) else seen

    @property
    def ended(self) -> bool:
        """Whether it has ended, reaped by its parent or not."""
        return self.handle is None or ended(self.handle)

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
