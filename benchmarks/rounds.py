"""Interleaved timing. A machine's speed changes from minute to minute, so compared actions run in turns and ratios are taken within a round."""

import statistics
import time
from collections.abc import Callable, Mapping

Action = Callable[[int], object]
"""A function that does its work a number of times and returns when all of it is done."""

Seconds = Mapping[str, list[float]]
"""Seconds of one execution of each action, by the action's name and then by round."""


def interleave(actions: Mapping[str, Action], rounds: int, times: int = 1, warmup: int = 1) -> Seconds:
    """Time actions in turns: A B C A B C …

    Args:
        actions: the actions by name.
        rounds: the number of turns of each.
        times: the number of executions in a turn.
        warmup: the number of executions before the first turn, so that tracing, compiling and page faults are not measured.
    """
    for action in actions.values():
        action(warmup)
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            seconds[name].append(timed(lambda action=action: action(times)) / times)
    return seconds


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median(seconds: Seconds, name: str) -> float:
    """Return the median over the rounds."""
    return statistics.median(seconds[name])


def speedup(seconds: Seconds, name: str, other: str) -> float:
    """Return the speed of `name` relative to `other`: the median over the rounds of the ratio within a round."""
    return statistics.median(theirs / mine for mine, theirs in zip(seconds[name], seconds[other], strict=True))


def spread(seconds: Seconds, name: str) -> float:
    """Return the spread of the rounds, (slowest − fastest) / median. A value well above 0.1 means that the machine was busy."""
    return (max(seconds[name]) - min(seconds[name])) / median(seconds, name)
