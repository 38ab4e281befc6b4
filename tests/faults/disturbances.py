"""Other disturbances of training runs: ill-timed signals, killed launchers, odd paths, used folders, closed outputs, inconsistent workers.

They share the runs and the table of `campaign.py`, which has the kills and damages.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from campaign import STEPS, Campaign, Row, numbers
from victim import EVERY, ROOT, RUN, Victim, check_all, differing

from tests.clones import clone, double_the_learning_rate
from utils.checkpoint.lock import Lock
from utils.checkpoint.reading import Checkpoint

EVALUATED = ("--test_freq", "2", "--early_stop_patience", "12", "--keep_best_checkpoint")  # every other step
IDENTICAL = "run to the end: bit-identical to the unbroken one"


def ended(processes: list[int], limit_s: float = 120) -> bool:
    """Return True if all of these processes end in time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{number}/exe").exists() for number in processes):
            return True
        time.sleep(0.1)
    return False


def position(folder: Path) -> dict:
    return Checkpoint(folder).manifest["position"]


class Disturbances:
    """The faults, one method each.

    Args:
        campaign: the campaign whose folder, dataset and unbroken run are used.
    """

    def __init__(self, campaign: Campaign):
        self.campaign, self.folder, self.draw = campaign, campaign.folder, campaign.draw

    def run(self, folder: Path, *flags, **options) -> Victim:
        return self.campaign.run(folder, *flags, **options)

    def _goes_on(self, folder: Path, row: Row, *flags, unbroken: Path | None = None) -> None:
        run = self.run(folder, "--resume", "auto", *flags)
        assert run.end() == 0, run.err
        unbroken = unbroken or self.campaign.unbroken
        assert not differing(unbroken, folder)
        assert position(unbroken) == position(folder), (position(unbroken), position(folder))
        row.outcome[IDENTICAL] += 1

    def signals_on_evaluations(self, count: int) -> Row:
        """Send a signal that takes effect on a step with an evaluation; early stop, best AUC and weights equal the unbroken run's."""
        row, unbroken, folder = Row("SIGTERM on a step with an evaluation"), self.folder / "evaluated", self.folder / "evaluations"
        assert self.run(unbroken, *EVALUATED).end() == 0
        last = position(unbroken)["step"]
        for wanted in sorted(self.draw.sample(range(4, last - 4), count)):
            run = self.run(folder, "--resume", "auto", *EVALUATED)
            assert run.wait_until(lambda: run.step >= wanted), run.err  # noqa: B023
            run.process.send_signal(signal.SIGTERM)
            assert run.end() == 143, run.err
            row.tries += 1
            where = position(folder)
            row.outcome["stopped before the evaluation" if where["evaluation_due"] else "stopped a step beside it"] += 1
        self._goes_on(folder, row, *EVALUATED, unbroken=unbroken)
        return row

    def hangups(self, count: int) -> Row:
        """Send SIGHUP, as a closed terminal does: the step is saved. Under nohup the signal changes nothing."""
        row, folder = Row("SIGHUP"), self.folder / "hangups"
        for _ in range(count):
            run, begin = self.run(folder, "--resume", "auto"), []
            assert run.wait_until(lambda: run.step and (begin or begin.append(run.step) or True) and run.step >= begin[0] + 5)  # noqa: B023
            run.process.send_signal(signal.SIGHUP)
            assert run.end() == 129, run.err
            assert max(check_all(folder)) >= run.step
            row.tries += 1
            row.outcome["exit 129, the step saved"] += 1
        self._goes_on(folder, row)
        run = self.run(self.folder / "nohup", around=("nohup",))
        assert run.wait_until(lambda: run.step >= 5)
        run.process.send_signal(signal.SIGHUP)
        assert run.end() == 0, run.err
        row.outcome["under nohup: ran to the end"] += 1
        return row

    def dead_launchers(self, count: int) -> Row:
        """Kill horovodrun (`kill -9` or SIGTERM): the workers save and end, the folder's lock is free, nothing keeps running."""
        row, folder = Row("horovodrun killed, 2 workers"), self.folder / "launcher"
        for i in range(count):
            run, begin = self.run(folder, "--resume", "auto", workers=2, horovodrun=True), []
            assert run.wait_until(lambda: run.step and (begin or begin.append(run.step) or True) and run.step >= begin[0] + 5)  # noqa: B023
            workers, step = run.workers(), run.step
            assert len(workers) == 2
            os.kill(run.process.pid, signal.SIGKILL if i % 2 else signal.SIGTERM)
            assert ended(workers), "workers keep running without their launcher"
            run.end()
            assert max(check_all(folder)) >= step
            Lock(folder).release()
            row.tries += 1
            row.outcome["the workers saved and ended"] += 1
        self._goes_on(folder, row)
        return row

    def odd_paths(self) -> Row:
        """Save to and resume from paths with `..`, links and odd characters."""
        row, home = Row("a path with `..`, a link, odd characters"), self.folder / "paths"
        (home / "here").mkdir(parents=True)
        (home / "link").symlink_to(home / "here")
        for path in ("here/../a", "link/../b", "./c/./d//e", "ü ☃ 'x' $y"):
            run = self.run(home / path)
            assert run.wait_until(lambda: run.step >= 20)  # noqa: B023
            run.process.send_signal(signal.SIGTERM)
            assert run.end() == 143, run.err
            row.tries += 1
            self._goes_on(home / path, row, "--restore_fallback")
        return row

    def used_folders(self) -> Row:
        """Save to a folder that holds another run's checkpoints; resume there."""
        row, folder = Row("a folder with another run's checkpoints"), self.folder / "used"
        shutil.copytree(self.campaign.unbroken, folder)
        run = self.run(folder)
        assert run.end() == 1 and len(run.errors) == 1 and "holds checkpoints of another run" in run.errors[0], run.err
        assert not differing(self.campaign.unbroken, folder)
        run = self.run(folder, "--resume", "auto")
        assert run.end() == 0 and "the run is finished" in run.out, run.err
        assert position(self.campaign.unbroken) == position(folder)
        row.tries, row.outcome["refused; a finished run changes nothing"] = 2, 2
        return row

    def lost_outputs(self) -> Row:
        """Close standard output and error, let their reader give up, or fill their disk; fill the log's disk."""
        row = Row("outputs closed, unread or full")
        full = 'mkdir -p full && mount -t tmpfs -o size=4k tmpfs full && head -c 4096 /dev/zero >full/rest; "$@"'
        cases = {
            "closed": ('exec "$@" >&- 2>&-', ()),
            "unread": ('"$@" 2>&1 | head -2; exit ${PIPESTATUS[0]}', ()),
            "full": (f"{full} >full/out", ("unshare", "-rm")),
            "log": (full, ("unshare", "-rm")),
        }
        for name, (script, around) in cases.items():
            folder, flags = self.folder / f"lost-{name}", ("--log_path", "full/log.json") if name == "log" else ()
            run = Victim(self.folder, *self._data(folder), *RUN, *self._length(), around=(*around, "bash", "-c", script, "bash"), log=flags)
            code = run.end()
            if around and ("unshare" in run.err or "mount" in run.err):
                row.outcome["not tried: this machine allows no mount"] += 1
                continue
            assert code == 0 and "Traceback" not in run.err, (name, code, run.err)
            assert not differing(self.campaign.unbroken, folder)
            row.tries += 1
            row.outcome[IDENTICAL] += 1
        return row

    def disagreements(self) -> Row:
        """Start workers with different flags, with different rows, and with different operations."""
        row, copy = Row("workers that disagree"), self.folder / "copy"
        shutil.copytree(self.campaign.dataset, copy)
        with (copy / "train/cat_1.bin").open("r+b") as file:
            content = file.read()
            file.seek(0)
            file.write(content[-2:] + content[:-2])
        cases = {
            "flags": (("--optimizer", "sgd"), {}, "worker 1 was started with --optimizer 'sgd', worker 0 with 'adam'"),
            "seed": (("--seed", "3"), {}, "worker 1 was started with --seed 3"),
            "rows": (("--dataset_path", copy), {}, "worker 1 reads other rows there than worker 0"),
            "operations": ((), {"DLRM_NATIVE_OPS": "0"}, "warning: worker 1 computes with "),
        }
        for name, (flags, variables, message) in cases.items():
            folder = self.folder / f"disagree-{name}"
            mine = [sys.executable, ROOT / "dlrm.py", *self._data(folder), *RUN, *self._length(), "--log_path", ""]
            other = ["env", *(f"{key}={value}" for key, value in variables.items()), *mine, *flags]
            run = Victim(self.folder, command=["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "1", *mine, ":", "-np", "1", *other])
            code = run.end()
            assert message in run.err, run.err
            if name == "operations":
                assert code == 0 and check_all(folder)
                row.outcome["said, and trained"] += 1
            else:
                assert code != 0 and len(run.errors) == 1 and not folder.exists(), (code, run.err)
                row.outcome["refused in one line before anything is trained"] += 1
            row.tries += 1
        return row

    def other_code(self) -> Row:
        """Double the learning rate in a clone: a worker that runs it ends all workers; scripts/elastic leaves its host out."""
        row, other = Row("a worker or a host with other code"), self.folder / "clone"
        double_the_learning_rate(clone(other))
        for odd in (0, 1):
            folder = self.folder / f"code-{odd}"
            words = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
            for rank in range(3):
                program = (other if rank == odd else ROOT) / "dlrm.py"
                words += [":"] * (rank > 0) + ["-np", "1", sys.executable, program, *self._data(folder), *RUN, *self._length(), "--log_path", ""]
            run = Victim(self.folder, command=words)
            assert run.end() != 0 and len(run.errors) == 1 and not folder.exists(), run.err
            assert f"worker {odd} (host " in run.errors[0] and "training/schedule.py differs" in run.errors[0], run.err
            row.tries, row.outcome["refused in one line before anything is read"] = odd + 1, odd + 1
        # In place of ssh: runs the worker's command on this machine, with the clone's dlrm.py.
        ssh = self.folder / "bin/ssh"
        ssh.parent.mkdir()
        ssh.write_text(f"""#!/bin/sh\nfor last; do :; done\nexec sh -c "$(printf %s "$last" | sed 's#{ROOT}/dlrm.py#{other}/dlrm.py#')"\n""")
        ssh.chmod(0o755)
        folder = self.folder / "code-elastic"
        worker = [sys.executable, "-u", ROOT / "dlrm.py", *self._data(folder), *RUN, *self._length(), "--log_path", ""]
        flags = ["--mpi-args=--oversubscribe", "--hosts", "odd:1,localhost:1"]
        words = ["env", f"PATH={ssh.parent}:{os.environ['PATH']}", sys.executable, ROOT / "scripts/elastic", *flags, "--", *worker]
        run = Victim(self.folder, command=words)
        assert run.end() == 0, run.err
        assert "host odd has other code than this host: training/schedule.py differs" in run.err, run.err
        assert not differing(self.campaign.unbroken, folder)
        row.tries += 1
        row.outcome["`scripts/elastic` left the host out: bit-identical to the unbroken one"] += 1
        return row

    def stopped_in_saves(self, count: int) -> Row:
        """Stop a worker (SIGSTOP) in the middle of a save, and let it continue after a while."""
        row = Row("a worker stopped (SIGSTOP) in a save for 3 s, 2 workers")
        for i in range(count):
            folder, seen = self.folder / f"stopped-{i}", set()
            saves, run = self.draw.randint(1, 3), self.run(folder, workers=2)

            def begun(folder=folder, seen=seen, saves=saves) -> bool:
                seen.update(numbers(folder) if folder.exists() else ())
                return len(seen) >= saves

            assert run.wait_until(begun), run.err
            time.sleep(self.draw.uniform(0, 0.2))
            worker = sorted(run.workers())[i % 2]
            os.kill(worker, signal.SIGSTOP)
            time.sleep(3)
            visible = check_all(folder)  # checkpoints that are visible during the stop are complete
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)
            assert run.end() == 0, run.err
            assert not differing(self.campaign.unbroken, folder)
            row.tries += 1
            row.outcome[f"{len(visible)} whole checkpoints meanwhile"] += 1
            row.outcome[IDENTICAL] += 1
        return row

    def all(self, count: int) -> list:
        """Return every fault, to be called one after another."""
        return [
            lambda: self.signals_on_evaluations(count),
            lambda: self.hangups(count),
            lambda: self.dead_launchers(count),
            self.odd_paths,
            self.used_folders,
            self.lost_outputs,
            self.disagreements,
            self.other_code,
            lambda: self.stopped_in_saves(count),
        ]

    def _data(self, folder: Path) -> tuple:
        return "--dataset_path", self.campaign.dataset, "--save_checkpoint_path", folder, "--checkpoint_every_steps", EVERY

    @staticmethod
    def _length() -> tuple:
        return "--max_steps", STEPS, "--epochs", 4
