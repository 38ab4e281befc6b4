"""The hosts that elastic training may use: asked for, waited for, watched beside a run."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from run.elastic.allotment import allot, choose, smallest, written
from run.elastic.discovery import HostScript
from run.elastic.request import Request, say
from run.elastic.same_code import SameCode
from utils.errors import UserError
from utils.signals import Stopped

POLL_S = 5.0  # between two looks at the hosts


class Hosts:
    """What the discovery script says, or the hosts that were given.

    Args:
        request: what was asked for.
        sleep: waits so many seconds; raises Stopped where a signal asked for the end.
    """

    def __init__(self, request: Request, sleep: Callable[[float], None]):
        self._request, self._sleep = request, sleep
        self._script = HostScript(request.script) if request.script else None
        self._code = SameCode(request.command, request.ssh, say)
        self._seen: dict[str, int] | None = None  # what the script has said beside a run, while the hosts' code is asked for

    @property
    def may_change(self) -> bool:
        """Whether there is a script to ask."""
        return self._script is not None

    def close(self) -> None:
        """End the script, if it runs."""
        if self._script:
            self._script.close()

    def now(self, in_use: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
        """What may be used now and has the same code, waited for; a signal ends the wait. Those in use are not asked for theirs."""
        hosts = self._request.hosts
        if self._script is not None:
            self._script.close()  # what a run that is under way has seen may be old
            while (hosts := self._script.poll()) is None:
                self._sleep(0.1)
        while (same := self._code.among(hosts, in_use)) is None:
            self._sleep(0.1)
        return same

    def _workers(self, hosts: Mapping[str, int], least: int) -> int | None:
        return choose(sum(hosts.values()), least, self._request.maximum, self._request.batch)

    def wait(self, least: int, first: bool = False) -> dict[str, int]:
        """Workers by host, as soon as there are enough. A script that fails is an error when it is asked first, later a reason to wait."""
        limit_s, needed = self._request.timeout_s, smallest(least, self._request.batch)
        deadline, said = time.monotonic() + limit_s, ""
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
            if found != said:
                say(f"waiting for hosts: {found}")
            said = found
            self._sleep(min(POLL_S, max(deadline - time.monotonic(), 0)))

    def changed(self, hosts: Mapping[str, int]) -> bool:
        """Whether other hosts are to be used than these. No, where the script does not say."""
        try:
            return self._differ(self.now(hosts), hosts)
        except Stopped:
            raise
        except UserError:
            return False

    def look(self, hosts: Mapping[str, int]) -> bool | None:
        """The same beside a run, without waiting: None while the script still runs, or a host is asked for its code."""
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
        """Whether one of the hosts in use has gone, or more workers could run."""
        gone = any(now.get(host, 0) < count for host, count in hosts.items())
        return gone or self._workers(now, self._request.minimum) != sum(hosts.values())


def count(number: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
