"""Division of workers among hosts."""

from collections.abc import Mapping


def choose(slots: int, minimum: int, maximum: int | None, batch: int) -> int | None:
    """Return the largest number of workers from minimum to maximum that has slots and divides the batch; None where there is none."""
    most = slots if maximum is None else min(slots, maximum)
    return next((workers for workers in range(min(most, batch), minimum - 1, -1) if batch % workers == 0), None)


def smallest(least: int, batch: int) -> int | None:
    """Return the smallest number of workers, at least `least`, that divides the batch; None where there is none."""
    return next((workers for workers in range(least, batch + 1) if batch % workers == 0), None)


def allot(hosts: Mapping[str, int], workers: int) -> dict[str, int]:
    """Return the number of workers by host, filling one host after another."""
    taken = {}
    for host, slots in hosts.items():
        taken[host] = min(slots, workers)
        workers -= taken[host]
    return {host: count for host, count in taken.items() if count}


def written(hosts: Mapping[str, int]) -> str:
    """Return hosts and slots in horovodrun's notation."""
    return ",".join(f"{host}:{slots}" for host, slots in hosts.items())
