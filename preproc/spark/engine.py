"""Preprocessing on Spark: our own code runs as tasks over parts of the files, so that the output has the same bytes as on one machine.

with SparkEngine(settings, folder) as engine:
    results, error = engine.map("read", work, items)
"""

import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from preproc.shared.engine_flags import SparkSettings
from preproc.spark.failures import one_line
from preproc.spark.probe import check_executors, in_thread, probe
from preproc.spark.session import session
from preproc.spark.tasks import TOKEN, Done, Failed, Job, run_task, task_folder
from utils.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
_POLL_S = 0.1
_PATTERN = re.compile(r"[\[\]{}*?\\]")
_REMOVED_S = 10.0


class SparkEngine:
    """A Spark session, and a folder to which its tasks write files.

    Args:
        settings: master, configuration, log.
        folder: existing folder of the run, visible to the driver and all executors. The files of the tasks are removed from it on exit.

    Raises:
        UserError: on entry: Spark or its executors do not start, or executors see another file system, or have another Python or other packages.
    """

    def __init__(self, settings: SparkSettings, folder: Path):
        self._settings = settings
        self.folder = Path(os.path.abspath(folder)) / "spark"
        self._token = uuid.uuid4().hex
        self._ending = ExitStack()

    def __enter__(self) -> "SparkEngine":
        if ":" in str(self.folder) and _PATTERN.search(str(self.folder)):
            raise UserError(
                f"{self.folder.parent}: Spark cannot read a folder with both a colon and one of []{{}}*?\\ in its name; choose another with --staging"
            )
        self.folder.mkdir()
        with ExitStack() as starting:
            starting.callback(self._remove)
            (self.folder / TOKEN).write_text(self._token)
            self.context = starting.enter_context(session(self._settings, self.folder))
            check_executors(self.context, lambda: self.map("probe", probe, range(self.parallelism)), self._settings.wait_s)
            self._ending = starting.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._ending.close()

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once, as far as Spark knows."""
        return max(1, self.context.defaultParallelism)

    @property
    def sql(self) -> "SparkSession":
        """The session for dataframes."""
        from pyspark.sql import SparkSession

        return SparkSession(self.context)

    def map(self, name: str, work: Callable[[Any, Path], _T], items: Sequence[Any], unit: str = "task") -> tuple[list[_T], Exception | None]:
        """Call a function with each item, in parallel, in one task each, with a folder for its files.

        Args:
            name: name of the job; `task_folder(name, number)` then holds the files of an item.
            work: function of a module, called with an item and a folder; returns a result that can be pickled.
            items: objects that can be pickled.
            unit: unit of the items, for the progress bar.

        Returns:
            the results in the order of the items, up to the first item whose work failed with an error that the user can fix, and that error; or all
            results and None.

        Raises:
            UserError: Spark itself failed.
        """
        job = Job(name, self.folder, self._token, work)
        numbered = list(enumerate(items))

        def run_part(part):
            return [run_task(job, number, item) for number, item in part]

        def collect():
            return self.context.parallelize(numbered, len(numbered)).mapPartitions(run_part).collect()

        found = self.run(collect, name, len(numbered), unit) if numbered else []
        results = []
        for number, outcome in enumerate(found):
            if isinstance(outcome, Failed):
                return results, outcome.error
            if not (folder := self.task_folder(name, number)).is_dir():
                raise UserError(f"{folder}: written by an executor, but the driver does not see it; choose a shared folder with --staging")
            assert isinstance(outcome, Done)  # a task is left out only after one that failed
            results.append(outcome.result)
        return results, None

    def task_folder(self, name: str, number: int) -> Path:
        """Return the folder that holds the files of an item when its job is done."""
        return task_folder(self.folder, name, number)

    def run(self, action: Callable[[], _T], name: str, total: int | None = None, unit: str = "task") -> _T:
        """Call a function that starts a Spark job and waits for it. An interruption cancels the job.

        Raises:
            UserError: the job failed; the message is its cause.
        """
        with tqdm(total=total, desc=name, unit=unit, disable=None) as bar:
            thread, outcome = in_thread(action)
            try:
                while thread.is_alive():
                    thread.join(_POLL_S)
                    self._advance(bar)
            except BaseException:
                self.context.cancelAllJobs()
                raise
        result, error = outcome[0]
        if error is not None:
            raise one_line(error) from None
        return result

    def _advance(self, bar: tqdm) -> None:
        if bar.disable or bar.total is None:
            return
        tracker = self.context.statusTracker()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        bar.n = max([bar.n, *(stage.numCompletedTasks for stage in stages if stage)])
        bar.refresh()

    def _remove(self) -> None:
        """Remove the tasks' files; retry for a while, since a task that is still ending may write some."""
        deadline = time.monotonic() + _REMOVED_S
        while self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            if time.monotonic() > deadline:
                print(f"{self._settings.name}: warning: {self.folder}: could not be removed", file=sys.stderr)
                return
            time.sleep(0.02)
