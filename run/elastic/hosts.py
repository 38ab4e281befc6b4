"""The hosts of elastic training: found, waited for, and watched during a run."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from run.elastic.allotment import allot, choose, smallest, written
from run.elastic.discovery import HostScript
from run.elastic.request import Request, say
from run.elastic.same_code import SameCode
from utils.errors import UserError
from utils.signals import Stopped

POLL_S = 5.0  # between two polls of the hosts


class Hosts:
    """The available hosts, from the discovery script or a fixed list.

    Args:
        request: the parsed command line.
        sleep: waits this many seconds; raises Stopped where a signal asks for the end.
    """

    def __init__(self, request: Request, sleep: Callable[[float], None]):
        self._request, self._sleep = request, sleep
        self._script = HostScript(request.script) if request.script else None
        self._code = SameCode(request.command, request.ssh, say)
        self._seen: dict[str, int] | None = None  # the script's last answer during a run, kept while the hosts are asked for their code

    @property
    def may_change(self) -> bool:
        """True where there is a discovery script."""
        return self._script is not None

    def close(self) -> None:
        """End the script if it runs."""
        if self._script:
            self._script.close()

    def now(self, in_use: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
        """Wait for the hosts that are available now and have the same code; a signal ends the wait. Hosts in use are not asked for their code."""
        hosts = self._request.hosts
        if self._script is not None:
            self._script.close()  # the answer of a run that has already started may be outdated
            while (hosts := self._script.poll()) is None:
                self._sleep(0.1)
        while (same := self._code.among(hosts, in_use)) is None:
            self._sleep(0.1)
        return same

    def _workers(self, hosts: Mapping[str, int], least: int) -> int | None:
        return choose(sum(hosts.values()), least, self._request.maximum, self._request.batch)

    def wait(self, least: int, first: bool = False) -> dict[str, int]:
        """Wait for enough hosts; return the workers by host. A script that fails raises an error on the first call, and is retried later on."""
        limit_s, needed = self._request.timeout_s, smallest(least, self._request.batch)
        deadline, reported = time.monotonic() + limit_s, ""
        self._code.begin()
        while True:
            try:
                hosts = self.now()
                if workers := self._workers(hosts, least):
                    return allot(hosts, workers)
                found = f"{count(sum(hosts.values()), 'slot')} found ({written(hosts) or 'no host'}), {needed} needed"
            except UserError as problem:
                if first or isinstance(problem, Stopped):
                    raise
                found = str(problem)
            first = False
            if time.monotonic() >= deadline:
                raise UserError(f"not enough hosts after {limit_s:g} s (--timeout): {found}")
            if found != reported:
                say(f"waiting for hosts: {found}")
            reported = found
            self._sleep(min(POLL_S, max(deadline - time.monotonic(), 0)))

    def changed(self, hosts: Mapping[str, int]) -> bool:
        """Return whether the run should move to other hosts than these; False where the script fails."""
        try:
            return self._differ(self.now(hosts), hosts)
        except Stopped:
            raise
        except UserError:
            return False

    def look(self, hosts: Mapping[str, int]) -> bool | None:
        """Return the result of `changed` without waiting, for use during a run; None while the script runs or a host is being asked for its code."""
        try:
            self._seen = self._script.poll() if self._seen is None else self._seen
        except UserError:
            return False
        now = None if self._seen is None else self._code.among(self._seen, hosts)
        if now is None:
            return None
        self._seen = None
        return self._differ(now, hosts)

    def _differ(self, now: Mapping[str, int], hosts: Mapping[str, int]) -> bool:
        """Return whether a host in use has gone, or the run could use another number of workers."""
        gone = any(now.get(host, 0) < count for host, count in hosts.items())
        return gone or self._workers(now, self._request.minimum) != sum(hosts.values())


def count(number: int, what: str) -> str:
    """Return a number with its noun: `1 worker`, `2 workers`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
