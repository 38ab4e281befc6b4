"""Work on two threads, with its results in the order of the tasks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from utils.signals import check_signals

THREADS = 2
T = TypeVar("T")


def in_order(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """What the tasks return. At most three are on their way or done and not taken: memory is that of so many."""
    waiting = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            source, failed = iter(tasks), None
            while True:
                try:
                    task = next(source)
                except StopIteration:
                    break
                except Exception as error:  # of what is read: what went before it comes first
                    failed = error
                    break
                waiting.append(pool.submit(task))
                del task
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
    """What tasks return, in their order; those of a size up to `small` run on two threads, the others one at a time, for their memory."""
    found: list[T | None] = [None] * len(tasks)
    few = [place for place, (size, _) in enumerate(tasks) if size <= small]
    for place, result in zip(few, in_order(tasks[place][1] for place in few), strict=True):
        found[place] = result
    for place in {*range(len(tasks))} - {*few}:
        found[place] = tasks[place][1]()
    return found
