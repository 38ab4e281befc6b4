"""Tests on two "hosts" in network namespaces, joined by sshd and TCP. Opt-in: they need root, iproute2 and openssh-server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = """--dataset_type synthetic --cpu --batch_size 64 --valid_batch_size 64 --synthetic_dataset_train_batches 5 --embedding_dim 8
    --synthetic_dataset_valid_batches 2 --synthetic_dataset_cardinalities 50,60,70 --bottom_mlp_dims 16,8 --top_mlp_dims 16,1""".split()

pytestmark = pytest.mark.skipif(not os.environ.get("DLRM_TWO_HOSTS"), reason="set DLRM_TWO_HOSTS=1 to run two hosts on this machine")


def final_figures(log):
    return [json.loads(line[5:]) for line in log.read_text().splitlines()][-1]["data"]


def test_two_hosts_train_the_model_that_one_worker_trains(tmp_path):
    logs = tmp_path / "one.json", tmp_path / "two.json"
    alone = [sys.executable, "dlrm.py", *FLAGS, "--log_path", str(logs[0])]
    together = ["scripts/two_hosts", sys.executable, "dlrm.py", *FLAGS, "--log_path", str(logs[1])]
    for command in (alone, together):
        subprocess.run(command, cwd=ROOT, check=True, timeout=180, capture_output=True)
    one, two = (final_figures(log) for log in logs)
    assert (one["auc"], one["train_loss"]) == (two["auc"], two["train_loss"])
