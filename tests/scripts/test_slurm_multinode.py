"""Tests of slurm_multinode.sh with stubs of Slurm's programs: NVIDIA's variables, and the project's own."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "slurm_multinode.sh"
PYXIS = "--container-image=[USER@][REGISTRY#]IMAGE[:TAG]"
OWN = {"cmd", "cont", "mounts", "srun_flags", "DATASET_PATH", "CHECKPOINT_PATH", "MODE", "BATCH_SIZE", "LOG_PATH", "EXTRA_FLAGS", "WORKERS_PER_NODE"}


@pytest.fixture
def submitted(tmp_path):
    """Return a function that runs the script as a job in a small project; the stub of srun prints its words, one a line, and runs the command."""
    root = tmp_path / "pro'ject"
    for path in ("dlrm.py", "scripts/keepalive.sh", ".venv/bin/python"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch(mode=0o755)

    def call(pyxis=False, **variables):
        stubs = {
            "srun": f"""if [ "$1" = --help ]; then echo "{"usage " + (PYXIS if pyxis else "")}"; exit; fi
                printf '%s\\n' "$@"; eval "last=\\${{$#}}"; exec bash -c "$last" """,
            "scontrol": "printf 'a\\nb\\n'",
            "numactl": "true",
            "horovodrun": 'echo horovodrun "$@"',
        }
        for name, text in stubs.items():
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if name not in OWN and not name.startswith("SLURM")}
        environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_SUBMIT_DIR": str(root)}
        environment |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "DLRM_ROOT": ""}
        done = subprocess.run(["bash", SCRIPT], cwd=tmp_path, env=environment | variables, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stdout.splitlines(), done.stderr

    call.root = root
    return call


def test_cmd_runs_under_srun_in_the_projects_environment(submitted):
    code, out, err = submitted(cmd='echo "$PWD" ${PATH%%:*}', srun_flags="--mpi=pmix -N 2")
    assert (code, err) == (0, "")
    assert out[:6] == ["--mpi=none", "--mpi=pmix", "-N", "2", "--ntasks-per-node=1", "/bin/bash"]
    assert out[-1] == f"{submitted.root} {submitted.root}/.venv/bin"


def test_container_is_used_where_srun_knows_containers(submitted):
    (submitted.root / ".venv/bin/python").unlink()  # the image has everything
    code, out, err = submitted(pyxis=True, cmd="echo ran", cont="nvidia dlrm:tf", mounts="/data:/data,/b:/c")
    assert (code, err, out[-1]) == (0, "", "ran")
    assert out[1:4] == ["--ntasks-per-node=1", "--container-image=nvidia dlrm:tf", "--container-mounts=/data:/data,/b:/c"]


def test_container_that_srun_does_not_know_is_one_line(submitted):
    code, out, err = submitted(cmd="echo ran", cont="image", mounts="/data:/data")
    assert code == 0 and out[-1] == "ran" and not any("container" in word for word in out)
    said = "srun knows no --container-image (pyxis), so cont image mounts /data:/data cannot be used: cmd runs without a container"
    assert err.startswith(f"slurm_multinode: {said}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("pyxis", "variables", "message"),
    [
        (False, {"cont": "image"}, "cmd is not set, but cont; expected a command"),
        (False, {"mounts": "/a:/a", "srun_flags": "-N 2", "DATASET_PATH": "/"}, "cmd is not set, but mounts, srun_flags"),
        (True, {"cmd": "true", "mounts": "/a:/a"}, "mounts is set without cont"),
        (False, {}, "DATASET_PATH is not set; expected the folder of a dataset, or a command in cmd"),
        (False, {"DATASET_PATH": "/nowhere"}, "DATASET_PATH /nowhere: no such folder"),
        (False, {"cmd": "true", "SLURM_JOB_ID": ""}, "SLURM_JOB_ID is not set; submit this script with sbatch"),
        (False, {"cmd": "true", "DLRM_ROOT": "/"}, "/ holds no dlrm.py"),
    ],
)
def test_wrong_variables_are_one_line(submitted, pyxis, variables, message):
    code, out, err = submitted(pyxis=pyxis, **variables)
    assert (code, out) == (1, []) and err.startswith("slurm_multinode: ") and message in err and err.count("\n") == 1


def test_variables_that_cmd_does_not_read_are_named(submitted):
    code, out, err = submitted(cmd="echo $DATASET_PATH", DATASET_PATH="/data", MODE="eval")
    assert (code, out[-1], err) == (0, "/data", "slurm_multinode: MODE has no effect with cmd, which does not read it\n")


def test_failed_cmd_fails_the_job(submitted):
    assert submitted(cmd="exit 3")[0] == 3


def test_without_nvidias_variables_horovodrun_starts_the_workers(submitted, tmp_path):
    code, out, err = submitted(DATASET_PATH=str(tmp_path), WORKERS_PER_NODE="2", EXTRA_FLAGS="--cpu")
    assert (code, err, out[0]) == (0, "", "slurm_multinode: train with 4 workers: a:2,b:2")
    assert out[1].startswith("horovodrun -np 4 -H a:2,b:2 ") and out[1].endswith("--batch_size 65536 --cpu")
