"""Work on two threads, with its results in the order of the tasks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 2
T = TypeVar("T")


def in_order(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """What the tasks return. At most three are on their way or done and not taken: memory is that of so many."""
    waiting = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                del task
                if len(waiting) > THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
