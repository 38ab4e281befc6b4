"""Diagnosis of ended workers, from their output and mpirun's: the cause, and whether a restart would help."""

import re
import signal
from collections.abc import Sequence

from utils.dialects.programs import PROGRAMS

# Output of horovodrun, mpirun and the workers when a worker or a host is lost through no fault of the command.
_LOST = {
    "ORTE has lost communication with a remote daemon": "a host was lost",
    "ORTE was unable to reliably start one or more daemons": "a host could not be reached",
    "could not connect to some hosts via ssh": "a host could not be reached",
    "Please check connectivity between servers": "a host could not be reached",
    "another worker ended, so this one does": "a worker was lost",
}
_NOT_ITS_FAULT = "another worker ended, so this one does|stopped by SIG|(stopped because )?the launcher "
_REPORTED = re.compile(rf"({'|'.join(map(re.escape, PROGRAMS))}): error: (?!(worker \d+: )?({_NOT_ITS_FAULT}))")
_DEFECT = re.compile(r"<stderr>:Traceback \(most recent call last\)")  # of a worker: horovodrun's own traceback has no tag
_KILLED = re.compile(r"exited on signal (\d+)")


def explained(lines: Sequence[str]) -> bool:
    """Return whether a worker has reported why it ended: a flag, a file, the loss, the disk."""
    return any(_REPORTED.search(line) for line in lines)


def restart_reason(code: int, lines: Sequence[str], changed: bool) -> str | None:
    """Return the reason to restart a failed run; None where it would fail again.

    Args:
        code: horovodrun's exit code: a worker's, or 128 + s where signal s ended it; mpirun's own (205, 255, …) where a host is lost.
        lines: lines of standard error.
        changed: whether the available hosts have changed.
    """
    if changed:
        return "the hosts have changed"
    if explained(lines):
        return None
    killed = next(filter(None, map(_KILLED.search, lines)), None)
    if killed:
        return f"a worker was ended by {_signal_name(int(killed[1]))}"
    if any(_DEFECT.search(line) for line in lines):
        return None
    for mark, reason in _LOST.items():
        if any(mark in line for line in lines):
            return reason
    if code != 128 + signal.SIGABRT and _signal_name(code - 128):  # 134 is also mpirun's "no such program", which it reports itself
        return f"the workers were ended by {_signal_name(code - 128)}"
    return None


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else ""
