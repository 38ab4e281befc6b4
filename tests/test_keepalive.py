"""Every launcher notices a host that has gone silent: the TCP keepalive settings, and the scripts that read them."""

import re
import subprocess
from pathlib import Path

import pytest

from run.elastic.supervisor import PATIENCE

ROOT = Path(__file__).parents[1]
LAUNCHERS = [
    path
    for path in (*sorted((ROOT / "scripts").iterdir()), ROOT / "slurm_multinode.sh")
    if path.is_file()
    and re.search(r"^(?!#).*\bhorovodrun -np", path.read_text(), re.M)
    and path.name != "install"  # it starts workers on one host only, as a check
]


def settings(**variables):
    command, clean = ["bash", "-euc", ". scripts/keepalive.sh; env"], {"PATH": "/usr/bin:/bin"}
    result = subprocess.run(command, cwd=ROOT, env=clean | variables, capture_output=True, text=True, check=True)
    return {name: value for name, _, value in (line.partition("=") for line in result.stdout.splitlines()) if name.startswith("OMPI_MCA_")}


def test_settings_match_elastic():
    assert settings() == PATIENCE


def test_settings_of_the_user_are_kept():
    assert settings(OMPI_MCA_oob_tcp_keepalive_time="60") == PATIENCE | {"OMPI_MCA_oob_tcp_keepalive_time": "60"}


def test_launchers_are_found():
    assert {path.name for path in LAUNCHERS} >= {"demo", "two_hosts", "slurm_multinode.sh"}


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: path.name)
def test_every_launcher_reads_the_settings(path):
    assert re.search(r"^\. .*scripts/keepalive\.sh$", path.read_text(), re.M)
