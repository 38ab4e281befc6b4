"""Tests of the discovery of hosts from a list or a script, and of its errors."""

import time

import pytest
from launching import wait_for

from run.elastic.discovery import HostScript, parse_hosts
from utils.errors import UserError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:2\nb:4\n", {"a": 2, "b": 4}),
        ("a:2,b", {"a": 2, "b": 1}),
        (" host-1.lan:16 \n\n10.0.0.2\n", {"host-1.lan": 16, "10.0.0.2": 1}),
        ("a:0\nb:1", {"b": 1}),
        ("", {}),
        ("# rack 1, and rack 2:\na:2 # the fast one\n#b:4\n  # nothing\nc:1#", {"a": 2, "c": 1}),
        ("a:2\r\nb:0004\r\n", {"a": 2, "b": 4}),
        ("a:1024", {"a": 1024}),
    ],
)
def test_hosts_are_parsed(text, hosts):
    assert parse_hosts(text, "script") == hosts


@pytest.mark.parametrize("text", ["a:", "a:x", "a:-1", "a b", "a:2:3", "a slots=2"])
def test_invalid_host_is_an_error(text):
    with pytest.raises(UserError, match=f"^script: {text!r} is not a host; expected host:slots or host"):
        parse_hosts(text, "script")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:1025", "'a:1025' has too many slots; expected one per worker, at most 1024 per host"),
        ("localhost:" + 20 * "9", "'localhost:99999999999999999999' has too many slots"),
        ("a:" + 5000 * "9", "has too many slots"),  # more digits than Python converts to an int
        ("a:2\nb\na", "a is named twice"),
    ],
)
def test_implausible_hosts_are_rejected(text, message):
    with pytest.raises(UserError, match=f"^script: .*{message}") as error:
        parse_hosts(text, "script")
    assert len(str(error.value)) < 300


def answer(script):
    asked = HostScript(script)
    return wait_for(lambda: asked.poll(), "an answer")


def test_discovery_script_runs_in_the_background(tmp_path):
    assert answer("echo a:2; sleep 0.3; echo b:1") == {"a": 2, "b": 1}
    script = HostScript(f"touch {tmp_path / 'asked'}; sleep 1000")
    start = time.monotonic()
    assert script.poll() is None and script.poll() is None
    assert time.monotonic() - start < 50  # neither the 1,000 s of the script nor its time limit of a minute
    wait_for((tmp_path / "asked").exists, "the script runs")
    script.close()
    (tmp_path / "asked").unlink()
    assert script.poll() is None  # starts the script again
    wait_for((tmp_path / "asked").exists, "the script runs again")
    script.close()


def test_endless_discovery_script_is_stopped(monkeypatch):
    with pytest.raises(UserError, match="prints more than 1048576 bytes"):
        answer("yes a:1")
    monkeypatch.setattr("run.elastic.discovery.SCRIPT_LIMIT_S", 0.3)
    with pytest.raises(UserError, match=r"no answer in 0.3 s; expected lines of host:slots"):
        answer("sleep 1000")


@pytest.mark.parametrize(
    ("script", "message"),
    [("echo a:1; exit 3", "ended with code 3"), ("./no/such/script 2>&-", "ended with code 127"), ("echo a:b", "'a:b' is not a host")],
)
def test_failing_discovery_script_is_an_error(script, message):
    with pytest.raises(UserError, match=message):
        answer(script)
