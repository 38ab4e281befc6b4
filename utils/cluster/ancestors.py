"""Identification of a worker's launcher among its ancestor processes.

horovodrun becomes `sh -c "mpirun …"`, and that shell does not forward signals: mpirun and the workers outlive it. So, of its ancestors, a worker
watches mpirun (`orted` on other hosts) and the shell that horovodrun became, but not the process that started horovodrun: the user's shell may end
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
_INTERPRETER = re.compile(r"(ba|da|k|z)?sh|perl|python[\d.]*")  # the interpreter of a script that wraps mpirun
_BY_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_BY_GLOO = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
_OF_HOROVODRUN = re.compile(r"mpirun (--allow-run-as-root --tag-output|-l) -np \d")  # the beginning of its command line of mpirun


@dataclass(frozen=True)
class Process:
    """A snapshot of a process."""

    number: int
    parent: int
    session: int
    words: tuple[str, ...]  # the words of its command line
    handle: psutil.Process | None = None  # distinguishes it from a later process with the same number

    @classmethod
    def of(cls, number: int) -> "Process | None":
        """Return a snapshot of a process; None where it has ended or is not accessible."""
        try:
            handle = psutil.Process(number)
            seen = cls(number, handle.ppid(), os.getsid(number), tuple(handle.cmdline()) or ("",), handle)
        except (psutil.Error, OSError):
            return None
        return None if ended(handle) else seen

    @property
    def ended(self) -> bool:
        """True where it has ended, whether or not its parent has reaped it."""
        return self.handle is None or ended(self.handle)

    @property
    def name(self) -> str:
        """The launcher's name for messages: the program's where it is mpirun, else "horovodrun"."""
        return self.program[0] if self.is_mpi else "horovodrun"

    @property
    def is_mpi(self) -> bool:
        """True for mpirun or its daemon on another host, and for a script of that name."""
        return self.program[0] in _MPI

    @property
    def program(self) -> list[str]:
        """The program's file name and its arguments, without a script's interpreter."""
        words = self.words[1:] if len(self.words) > 1 and _INTERPRETER.fullmatch(Path(self.words[0]).name) else self.words
        return [Path(words[0]).name, *words[1:]]

    @property
    def was_horovodrun(self) -> bool:
        """True for the shell that horovodrun has become."""
        return len(self.words) == 3 and self.words[1] == "-c" and _OF_HOROVODRUN.match(self.words[2]) is not None

    @property
    def is_horovodrun(self) -> bool:
        """True for horovodrun itself, which keeps running under Gloo."""
        return self.program[0] == "horovodrun" or "horovod.runner.launch" in self.words[:4]


def ancestors() -> Iterator[Process]:
    """Yield the parent of this process, its parent, and so on."""
    process = Process.of(os.getppid())
    while process is not None:
        yield process
        process = Process.of(process.parent) if process.parent else None


def launchers(line: list[Process], variables: Mapping[str, str]) -> list[Process]:
    """Return the worker's ancestors that are its launcher; empty where it was started without a launcher that keeps running.

    Args:
        line: the ancestors, nearest first.
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
    """Return whether horovodrun had ended before it could be watched: mpirun's command line is horovodrun's, but its parent is in another session.

    This does not apply where /bin/sh executes the command of `-c` in place of itself: then horovodrun has become mpirun itself.
    """
    if not watched or not _OF_HOROVODRUN.match(" ".join(watched[-1].program)):
        return False
    mother = next((process for process in line if process.number == watched[-1].parent), None)
    if mother is None or mother.session == watched[-1].session:
        return False
    with contextlib.suppress(OSError):  # test what /bin/sh does: `cat` is the child of this process only if sh was replaced by it
        found = subprocess.run(["/bin/sh", "-c", "cat /proc/self/stat"], capture_output=True, text=True).stdout.rpartition(")")[2].split()
        return len(found) > 1 and int(found[1]) != os.getpid()
    return False
