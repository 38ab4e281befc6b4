"""Tests of publishing on the real server: the announced version is served after a restart, a killed backend and a killed publish."""

import contextlib
import shutil
import signal
import sys
import time

import numpy as np
import psutil
import pytest
from children import child
from real_server import eventually, started, stubs
from served_models import PLAIN, export, train, write

import dlrm
from run.served_rows import drawn_rows
from serving.connection import Connection, RequestError
from serving.live import CONFIG, live, versions
from serving.publish import PublishConfig, publish
from utils.errors import UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train two models and export the first; return the folder, inputs of requests and each model's scores of them."""
    folder = tmp_path_factory.mktemp("published")
    data = write(folder / "data", PLAIN)
    paths = [train(data, folder / "c1"), train(data, folder / "c2", learning_rate=0.2)]
    models = [dlrm.load(path, mmap=True, cpu=True) for path in paths]
    drawn = drawn_rows(models[0].features, 3)
    inputs = {"numerical": drawn.numerical[:40], "categorical": drawn.ids[:40]}
    scorers = [model.over_arrays() for model in models]
    scores = [scorer.score(*scorer.checked(inputs["numerical"], inputs["categorical"])) for scorer in scorers]
    assert np.abs(scores[0] - scores[1]).max() > 1e-3
    export(paths[0], folder / "r")
    return folder, inputs, scores


@pytest.fixture
def repository(trained, tmp_path):
    return shutil.copytree(trained[0] / "r", tmp_path / "r")


def answered(server, inputs, scheme="grpc"):
    """Return the bytes of the server's scores; None while it cannot score."""
    try:
        connection = Connection(f"{scheme}://{getattr(server, scheme)}", "dlrm")
        return connection.infer(inputs).tobytes()
    except (RequestError, UserError):
        return None


def same(found, scores):
    return found == scores.tobytes()


def kill(server):
    for process in stubs(server):
        process.kill()


@pytest.mark.costly("three starts of the server")
def test_only_announced_versions_are_served_after_a_restart(trained, repository):
    """A restarted backend serves the announced version although newer ones stand beside it; a served version is not removed."""
    folder, inputs, (first, second) = trained
    config = {"repository": str(repository), "checkpoint": str(folder / "c2"), "keep": 1}
    with started(repository) as server:
        for number in (2, 3):
            assert publish(PublishConfig(**config)) == number
        assert versions(repository / "dlrm") == [1, 2, 3]
        kill(server)
        assert same(eventually(lambda: answered(server, inputs)), first)
        assert publish(PublishConfig(repository=str(repository), model_version=3, url=f"http://{server.http}")) == 3
        assert same(answered(server, inputs), second)
        kill(server)
        assert same(eventually(lambda: answered(server, inputs)), second)
        assert publish(PublishConfig(repository=str(repository), model_version=1, url=f"grpc://{server.grpc}")) == 1  # back to the older version
        assert same(answered(server, inputs), first)
        assert publish(PublishConfig(**config, url=(f"grpc://{server.grpc}", f"http://{server.http}"))) == 4
        assert same(answered(server, inputs), second) and versions(repository / "dlrm") == live(repository / "dlrm") == [4]
        shutil.copytree(repository / "dlrm/4", repository / "dlrm/5")
        (repository / "dlrm/5/checkpoint/manifest.json").write_text("{}")
        with pytest.raises(RequestError, match=r"manifest\.json: cannot be read"):
            publish(PublishConfig(repository=str(repository), model_version=5, url=f"grpc://{server.grpc}"))
        assert same(answered(server, inputs), second) and live(repository / "dlrm") == [4]


def test_a_damaged_or_incomplete_version_is_refused_while_the_old_one_answers(trained, repository, tmp_path):
    folder, inputs, (first, second) = trained
    with started(repository) as server:
        url = f"grpc://{server.grpc}"
        assert publish(PublishConfig(repository=str(repository), checkpoint=str(folder / "c2"))) == 2
        existing = PublishConfig(repository=str(repository), model_version=2, url=url)
        (table,) = [path for path in (repository / "dlrm/2/checkpoint/tables/b").rglob("*") if path.is_file() and path.name != "zarr.json"]
        content = table.read_bytes()
        flipped = bytearray(content)
        flipped[250 * 4 * 8 + 3] ^= 0x40  # the highest bit of an exponent in a row that is rarely looked up
        table.unlink()  # not in place: the file is linked to the checkpoint's
        for damaged in (True, False):
            table.write_bytes(flipped if damaged else content)
            if damaged:
                with pytest.raises(RequestError, match=r"tables/b/weights.*checksum.*; the checkpoint is damaged"):
                    publish(existing)
                assert same(answered(server, inputs), first) and live(repository / "dlrm") == [1]
        (repository / "dlrm/2/model.py").rename(tmp_path / "model.py")
        with pytest.raises(UserError, match=r"dlrm/2/model.py: no such file, and the version cannot be served without it"):
            publish(existing)
        process = server.process
        assert same(answered(server, inputs), first) and process.poll() is None
        (tmp_path / "model.py").rename(repository / "dlrm/2/model.py")
        assert publish(existing) == 2 and same(answered(server, inputs), second) and server.process is process
        hidden = table.stat()
        table.write_bytes(flipped)
        assert hidden.st_ino == table.stat().st_ino
        with pytest.raises(UserError, match=r"tables/b/weights.*checksum"):
            publish(PublishConfig(repository=str(repository), model_version=2, verify=True))
    shutil.copytree(repository / "dlrm", repository / "other")
    (repository / "other/2/model.py").unlink()
    table.write_bytes(content)
    said = []
    with started(repository, said.append) as server:
        assert same(answered(server, inputs), second)
    assert any(text.startswith("other: skipped: ") and "other/2/model.py: no such file" in text for text in said)


def test_backend_killed_right_after_each_restart_serves_again(trained, repository):
    _, inputs, (first, _) = trained
    said = []
    with started(repository, said.append) as server:
        kill(server)
        for count in (1, 2):
            eventually(lambda: sum("serves again" in text for text in said) >= count)  # noqa: B023
            kill(server)
        assert same(eventually(lambda: answered(server, inputs)), first)


def test_server_answers_again_after_its_backend_was_stopped_under_load(trained, repository):
    """A server whose backend was stopped under load answers again after the backend is continued; if the server aborts, it is restarted."""
    _, inputs, (first, _) = trained
    with started(repository) as server:
        connection = Connection(f"grpc://{server.grpc}", "dlrm")
        (stub,) = stubs(server)
        stub.send_signal(signal.SIGSTOP)
        for _ in range(200):
            connection.begin(inputs, lambda scores, error: None)
        time.sleep(1)
        with contextlib.suppress(psutil.NoSuchProcess):
            stub.send_signal(signal.SIGCONT)
        assert same(eventually(lambda: answered(server, inputs)), first)
        connection.close()


def test_killed_publish_leaves_the_announced_version(trained, repository):
    folder, inputs, (first, second) = trained
    with started(repository) as server:
        words = ["-m", "serving.publish", "--repository", repository, "--checkpoint", folder / "c2", "--url", f"grpc://{server.grpc}"]
        with child([sys.executable, *words]) as process:
            eventually(lambda: (repository / "dlrm/2").exists() or process.poll() is not None, 120)
            process.send_signal(signal.SIGKILL)
            process.wait()
        announced = live(repository / "dlrm")
        assert announced in ([1], [2]) and (repository / "dlrm" / str(announced[0]) / CONFIG).is_file()
    with started(repository) as server:
        assert same(answered(server, inputs), first if announced == [1] else second)


MOUNTED = """
set -e
mkdir "$1/mount"
mount --bind "$1/r" "$1/mount"
shift
"$@" --repository "$0/mount"
mount -o remount,ro,bind "$0/mount"
if "$@" --repository "$0/mount"; then exit 3; fi
"""


def test_a_repository_may_be_a_mount_point(trained, repository):
    """A bind mount is of its parent's device, and yet nothing can be moved there from beside it, as with a container's volume."""
    words = [sys.executable, "-m", "serving.publish", "--checkpoint", trained[0] / "c2"]
    with child(["unshare", "-rm", "sh", "-c", MOUNTED, repository.parent, repository.parent, *words]) as process:
        out, errors = process.communicate(timeout=300)
    if "unshare" in errors or "mount:" in errors:
        pytest.skip("this machine allows no mount in a namespace")
    assert process.returncode == 0, (out, errors)
    assert versions(repository / "dlrm") == [1, 2] and "version 2 is written" in out
    assert {path.name for path in repository.iterdir()} == {"dlrm"}
    assert {path.name for path in (repository / "dlrm").iterdir()} == {"1", "2", CONFIG, "MODEL.md"}
    assert f"{repository.parent}/mount/dlrm: Read-only file system; a version is written there, so it must be writable" in errors
