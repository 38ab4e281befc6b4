"""Running of tasks on two threads, with the results in the order of the tasks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from utils.signals import check_signals

THREADS = 2
T = TypeVar("T")


def in_order(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield the results of the tasks in order.

    At most three tasks are running or have a result that was not taken yet, which bounds the memory.
    """
    waiting = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            source, failed = iter(tasks), None
            while True:
                try:
                    task = next(source)
                except StopIteration:
                    break
                except Exception as error:  # raised by the input: first yield the results of the tasks before it
                    failed = error
                    break
                waiting.append(pool.submit(task))
                del task  # else a task that is done would keep its input in memory
                check_signals()
                if len(waiting) > THREADS:
                    yield waiting.popleft().result()
            while waiting:
                check_signals()
                yield waiting.popleft().result()
            if failed is not None:
                raise failed
        finally:
            for future in waiting:
                future.cancel()


def by_size(tasks: Sequence[tuple[int, Callable[[], T]]], small: int) -> list[T]:
    """Return the results of the tasks in order.

    Tasks of a size up to `small` run on two threads. Larger ones run one at a time, to bound the memory.
    """
    found: list[T | None] = [None] * len(tasks)
    few = [place for place, (size, _) in enumerate(tasks) if size <= small]
    for place, result in zip(few, in_order(tasks[place][1] for place in few), strict=True):
        found[place] = result
    for place in {*range(len(tasks))} - {*few}:
        found[place] = tasks[place][1]()
    return found
