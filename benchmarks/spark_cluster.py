"""A standalone Spark cluster on the loopback: a master and workers of one core each, in separate processes that are always ended."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_EXECUTOR_MIB = 900  # memory that a worker gives to executors; Python is not counted


class Cluster:
    """A master at `url`, and its workers."""

    def __init__(self, folder: Path, workers: int):
        import pyspark

        self._folder, self._processes, self._logs = folder, [], []
        self._home = Path(pyspark.__file__).parent
        self._environment = {**os.environ, "SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        self._environment |= {"SPARK_LOCAL_DIRS": str(folder / "local"), "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
        try:
            # Port 0: each process takes a free port itself. A port chosen here could be taken by another process before the start.
            self._start("master.Master", "--host", "127.0.0.1", "--port", 0, "--webui-port", 0)
            self.url = self._wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)\s", 0)[1]
            for number in range(workers):
                words = ["-c", "1", "-m", f"{_EXECUTOR_MIB}m", "-d", folder / f"worker-{number}", "--webui-port", 0]
                self._start("worker.Worker", "--host", "127.0.0.1", *words, self.url)
            for number in range(workers):
                self._wait_for("Successfully registered with master", 1 + number)
        except BaseException:
            self.end()
            raise

    def executors(self) -> list[psutil.Process]:
        """Return the executors that are running."""
        children = [child for process in self._processes if process.poll() is None for child in psutil.Process(process.pid).children(recursive=True)]
        return [child for child in children if _is_executor(child)]

    def end(self) -> None:
        """Kill every process of the cluster, with its process tree."""
        for process in reversed(self._processes):
            family = []
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(process.pid).children(recursive=True)
            for one in (process, *family):
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    one.send_signal(signal.SIGKILL)
            process.wait()
        for log in self._logs:
            log.close()

    def _start(self, name: str, *words: object) -> None:
        log = (self._folder / f"{len(self._processes)}.log").open("wb+")
        command = [self._home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *words]
        self._logs.append(log)
        self._processes.append(subprocess.Popen(list(map(str, command)), env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def _wait_for(self, said: str, number: int) -> re.Match:
        """Wait until the output of process `number` matches a regular expression, and return the match."""
        deadline = time.monotonic() + 180
        path = Path(self._logs[number].name)
        while not (found := re.search(said, text := path.read_text(errors="replace"))):
            assert self._processes[number].poll() is None, text
            assert time.monotonic() < deadline, f"no output matched {said!r}: {text}"
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a cluster, and end it at the end of the `with` block."""
    made = Cluster(folder, workers)
    try:
        yield made
    finally:
        made.end()


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    return False
