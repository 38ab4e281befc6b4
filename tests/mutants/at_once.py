"""Several processes that share a list of tasks."""

import ctypes
import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterator

_PR_SET_PDEATHSIG = 1


def at_once(count: int, task: Callable[[int, int], object], processes: int) -> Iterator[tuple[int, object]]:
    """Run tasks in forks of this process, each in the next free one; yield number and answer of each task as they arrive.

    Args:
        count: the number of tasks.
        task: runs a task; called with the number of the process and that of the task.
        processes: the number of processes.

    Raises:
        RuntimeError: a task raised, or its process was killed; the other processes are ended.
    """
    context = multiprocessing.get_context("fork")
    next_one, answers = context.Value("q", 0), context.Queue()

    def work(process: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # SIGTERM's handler ends the task's own children
        while True:
            with next_one.get_lock():
                number, next_one.value = next_one.value, next_one.value + 1
            if number >= count:
                return
            answers.put((number, task(process, number)))

    workers = [context.Process(target=work, args=(process,)) for process in range(min(processes, count))]
    try:
        for worker in workers:
            worker.start()
        for _ in range(count):
            yield _next(answers, workers)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
        for worker in workers:
            worker.join()


def _next(answers, workers) -> tuple[int, object]:
    while True:
        ended = any(worker.exitcode for worker in workers)  # read before the queue, so that no answer sent before the end is lost
        try:
            return answers.get(timeout=1)
        except queue.Empty:
            if ended:
                raise RuntimeError("a process of the campaign failed; see its output above") from None
