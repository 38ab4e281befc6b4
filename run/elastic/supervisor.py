"""Elastic training: when a worker is lost, `horovodrun` is restarted on the remaining hosts, from the newest checkpoint.

Horovod's own elastic mode repairs a running job, and needs every worker to hold the whole model. With sharded tables, a lost
worker's rows survive only in a checkpoint.
"""

import itertools
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from run.elastic.allotment import written
from run.elastic.diagnosis import explained, restart_reason
from run.elastic.hosts import POLL_S, Hosts, count
from run.elastic.request import Request, resume_flags, saved_step, say
from utils.cluster.processes import Job, send
from utils.dialects.programs import is_program
from utils.errors import UserError
from utils.signals import Received, Stopped

PAUSE_S = 3.0  # before a restart that follows one without progress
NO_WORKER_S = 30.0  # time limit of the search for a worker that can be asked to stop
LINES = 5000  # last lines of standard error that are kept, to find out why a run ended
# These make mpirun probe a silent host after 10 s, 3 times at intervals of 5 s. Its defaults (300 s, 9 times, 20 s) detect a host
# without power only after 8 minutes.
PATIENCE = {"OMPI_MCA_oob_tcp_keepalive_time": "10", "OMPI_MCA_oob_tcp_keepalive_intvl": "5", "OMPI_MCA_oob_tcp_keepalive_probes": "3"}


class Supervisor:
    """A supervisor that starts workers until training is complete, or until a restart would not help.

    Args:
        request: the parsed command line.
    """

    def __init__(self, request: Request):
        self._request = request
        self._path = request.training.save_checkpoint_path
        self._hosts = Hosts(request, self._sleep)
        self._signals = Received()

    def run(self) -> int:
        """Run the workers and return the exit code of the last start. Raises UserError where hosts are missing or a signal stops the run."""
        try:
            return self._run()
        finally:
            self._hosts.close()

    def _run(self) -> int:
        request, without_progress = self._request, 0
        hosts = self._hosts.wait(request.first, first=True)
        saved = saved_step(self._path)
        if saved is not None and request.training.restore_checkpoint_path is not None:
            say(f"{self._path} holds step {saved}: training resumes from it, not from --restore_checkpoint_path")
        for start in itertools.count(1):
            origin = "from the beginning" if saved is None else f"from step {saved} (latest checkpoint)"
            say(f"start {start}: {count(sum(hosts.values()), 'worker')} on {written(hosts)}, {origin}")
            code, lines = self._train(hosts, saved is not None)
            before, saved = saved, saved_step(self._path)
            if code == 0:
                say(f"training is complete: step {saved}")
                return 0
            if self._signals:
                return self._stopped(code, lines, saved)
            reason = restart_reason(code, lines, self._hosts.changed(hosts))
            if reason is None:
                say(f"the workers ended with code {code}, and would fail again: no restart")
                return code
            without_progress = 0 if (saved or 0) > (before or 0) else without_progress + 1
            if without_progress > request.reset_limit:
                say(f"{reason} (code {code}); no restart: --reset-limit {request.reset_limit} restarts have brought no newer checkpoint")
                return code
            say(f"{reason} (code {code}): restart")
            if without_progress:
                self._sleep(PAUSE_S)
            hosts = self._hosts.wait(request.minimum)
        raise AssertionError  # itertools.count has no end

    def _train(self, hosts: Mapping[str, int], saved: bool) -> tuple[int, list[str]]:
        """Run the workers once; return horovodrun's exit code and the last lines of standard error."""
        request, lines = self._request, deque(maxlen=LINES)
        words = ["horovodrun", "-np", str(sum(hosts.values())), "-H", written(hosts), *request.launcher]
        words += [*request.command, *resume_flags(request.training, saved)]
        asked, changes, next_look = False, 0, time.monotonic() + POLL_S
        with Job(words, PATIENCE | os.environ, lines.append) as job:
            while not job.ended(0.2):
                if self._signals and not asked:
                    asked = self._ask_to_stop(job)
                if self._signals.at_once:
                    say("ending all at once")
                    break
                if self._hosts.may_change and not asked and time.monotonic() >= next_look and (changed := self._hosts.look(hosts)) is not None:
                    changes = changes + 1 if changed else 0
                    next_look = time.monotonic() + POLL_S
                    if changes >= 2 and (workers := job.find(is_worker)):  # two looks agree, so it is no passing change
                        say("the hosts have changed: the workers finish a step and save")
                        send(signal.SIGTERM, workers)
                        asked = True
        return job.code, list(lines)

    def _ask_to_stop(self, job: Job) -> bool:
        """Let the workers of this host finish the step and save; they inform those of other hosts. Without a worker on this host, end all."""
        say(f"{signal.Signals(self._signals[0]).name}: the workers finish the step and save; a second signal ends them at once")
        deadline = time.monotonic() + NO_WORKER_S
        while not job.ended(0.2) and not self._signals.at_once:  # the workers may still be starting
            if workers := job.find(is_worker):
                send(signal.SIGTERM, workers)
                return True
            if time.monotonic() >= deadline:
                say("no worker runs on this host to receive the signal: all workers are ended")
                job.kill()
        return True

    def _stopped(self, code: int, lines: Sequence[str], saved: int | None) -> int:
        if explained(lines):  # the workers failed, so the save did not succeed
            return code
        end = "nothing is saved" if saved is None else f"step {saved} is saved in {self._path}"
        raise Stopped(self._signals[-1], f"while training; {end}; to resume, run the same command")

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._signals and time.monotonic() < deadline:
            time.sleep(0.1)
        if self._signals:
            raise Stopped(self._signals[0], "while no worker ran; to resume, run the same command")


def is_worker(words: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Return whether a process, by its command and environment, is a training worker that mpirun started."""
    program = "python" in Path(words[0]).name and any(map(is_program, words)) if words else False
    return program and "OMPI_COMM_WORLD_RANK" in variables


def main(arguments: Sequence[str]) -> int:
    """Run the command line of scripts/elastic; return its exit code."""
    if shutil.which("horovodrun") is None:  # the .venv is not activated
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    request = Request.parse(arguments)
    if shutil.which("horovodrun") is None:
        raise UserError("horovodrun: not found; ./scripts/install installs it")
    return Supervisor(request).run()
