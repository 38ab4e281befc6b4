"""Tests of the workers that stay: they keep nothing of a job but their imports, fail as launched ones do, and end with the run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed import resident
from tests.distributed.launching import wait_for
from tests.distributed.resident import CONTROLLER, FOLDER, call, do_in_turn
from utils import launch

ME = "tests.distributed.test_resident"


@pytest.fixture
def own_groups(tmp_path, monkeypatch):
    """Use groups of this test's own, which end with a process of its own; return that process."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"]) as controller:
        monkeypatch.setenv(FOLDER, str(tmp_path / "residents"))
        monkeypatch.setenv(CONTROLLER, str(controller.pid))
        yield controller
        controller.kill()
        controller.wait()
        wait_for(lambda: not _alive(tmp_path), "the end of the groups")


def _alive(folder: Path) -> list[int]:
    return [number for path in folder.rglob("pid-*") if (number := int(path.read_text())) and Path(f"/proc/{number}/stat").exists()]


def tell(folder: str) -> None:
    """Write what this worker sees, print, and change what the next job must find as before."""
    seen = {"pid": os.getpid(), "size": launch.size(), "variable": os.environ.get("DLRM_TOLD"), "here": os.getcwd(), "argv": sys.argv[1:]}
    seen["ignored"] = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    (Path(folder) / f"{launch.rank()}.json").write_text(json.dumps(seen))
    print(f"worker {launch.rank()}")
    os.chdir("/")
    os.environ["DLRM_TOLD"] = "kept"
    sys.argv.append("kept")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def fail(rank: str, how: str) -> None:
    """Fail on one worker; the others wait."""
    if launch.rank() == int(rank):
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "leave":
            os._exit(0)
        raise ValueError("of this worker")
    signal.pause()


def test_jobs_share_processes_and_nothing_else(own_groups, tmp_path, monkeypatch):
    seen = []
    for told in ("one", None):
        if told:
            monkeypatch.setenv("DLRM_TOLD", told)
        else:
            monkeypatch.delenv("DLRM_TOLD")
        result = call(1, f"{ME}:tell", tmp_path)
        assert (result.code, result.out, result.err) == (0, "worker 0\n", "")
        seen.append(json.loads((tmp_path / "0.json").read_text()))
    assert seen[0].pop("variable") == "one" and seen[1].pop("variable") is None
    assert seen[0] == seen[1] and seen[0]["pid"] != os.getpid() and not seen[0]["ignored"]


def test_workers_stand_still_between_jobs_and_end_with_the_run(own_groups, tmp_path):
    result = call(2, f"{ME}:tell", tmp_path)
    assert result.code == 0 and sorted(result.out.split("\n")) == ["", "worker 0", "worker 1"]
    found = _alive(tmp_path)
    assert len(found) == 2
    wait_for(lambda: all(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "T" for number in found), "the stop")
    own_groups.kill()
    own_groups.wait()
    wait_for(lambda: not _alive(tmp_path), "the end of the groups")


@pytest.mark.parametrize(("how", "said"), [("kill", "signal 9"), ("leave", ""), ("raise", "ValueError: of this worker")])
def test_a_worker_that_ends_fails_the_job_and_another_group_takes_the_next(own_groups, tmp_path, how, said):
    result = call(2, f"{ME}:fail", 1, how)
    assert result.code > 0 and said in result.err, result
    assert call(2, f"{ME}:tell", tmp_path).code == 0


def test_job_above_its_limit_is_killed_and_shown(own_groups, tmp_path):
    with pytest.raises(AssertionError, match=r"1 workers took more than 1 s: .*fail"):
        call(1, f"{ME}:fail", 1, "wait", limit_s=1)
    assert call(1, f"{ME}:tell", tmp_path).code == 0


def test_commands_stop_at_the_first_that_fails(own_groups, tmp_path):
    plan = ("--mode", "plan", "--dataset_type", "synthetic", "--synthetic_dataset_cardinalities", "10")
    result = do_in_turn(1, [plan, ("--mode", "nothing"), plan])
    assert result.code == 1 and result.out.count("embedding parameters") == 1, result
    assert len(result.errors) == 1 and "--mode" in result.errors[0] and "Traceback" not in result.err
    assert resident.spent_s > 0
