"""Tests that dlrm.py prints exactly the error lines that docs/reliability.md lists when their faults occur."""

import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from victim import RUN, Victim, write_dataset

import dlrm
from tests.distributed.launching import in_process
from utils.checkpoint.lock import Lock
from utils.commands import run_command
from utils.signals import StopRequest

DOCUMENT = Path(__file__).parents[2] / "docs/reliability.md"
LINES = re.findall(r"^    (dlrm\.py: .+)$", DOCUMENT.read_text(), re.M)


class World:
    """A dataset and checkpoints of one epoch on it, for a case to damage; `run` returns standard error."""

    def __init__(self, folder, dataset, checkpoint, capfd, monkeypatch):
        self.folder, self.capfd, self.monkeypatch = folder, capfd, monkeypatch
        self.data, self.checkpoint = shutil.copytree(dataset, folder / "DATASET"), shutil.copytree(checkpoint, folder / "CHECKPOINT")
        self.newest = self.checkpoint / "step-00000024"

    def run(self, *flags, restore=False, save=None, epochs=2):  # one epoch more than the checkpoint's run
        more = ["--restore_checkpoint_path", self.checkpoint] if restore else []
        more += ["--save_checkpoint_path", save] if save else []
        arguments = ["dlrm.py", "--dataset_path", self.data, *RUN, "--epochs", epochs, "--log_path", self.folder / "log.json", *more, *flags]
        self.monkeypatch.setattr(sys, "argv", list(map(str, arguments)))
        self.capfd.readouterr()
        code = run_command(dlrm.main, "dlrm.py")
        assert code in (1, 143)
        return self.capfd.readouterr().err

    def meanwhile(self, action, *flags, **options):
        """Run for many epochs; call `action` after a few steps."""

        def wait():
            log = self.folder / "log.json"
            while not log.exists() or '"step": [0, 6]' not in log.read_text():
                time.sleep(0.02)
            action()

        threading.Thread(target=wait, daemon=True).start()
        return self.run(*flags, epochs=500, **options)

    def ids(self, row, value):
        path = self.data / "train/cat_1.bin"
        ids = np.fromfile(path, np.int16)
        ids[row] = value
        ids.tofile(path)

    def spec(self, old, new):
        path = self.data / "feature_spec.yaml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def flip(self, name):
        content = bytearray((self.newest / name).read_bytes())
        content[100] ^= 1
        (self.newest / name).write_bytes(content)


def cut(path, size=101):
    with path.open("r+b") as file:
        file.truncate(size)


def full_disk(world):
    script = 'mount -t tmpfs -o size=20m tmpfs "$0" && exec "$@"'
    disk = world.folder / "CHECKPOINT"
    around = ("unshare", "-rm", "sh", "-c", script, disk)
    run = Victim(world.folder, "--dataset_path", world.data, "--save_checkpoint_path", disk, "--checkpoint_every_steps", 4, *RUN, around=around)
    code = run.end()
    if "unshare" in run.err or "mount:" in run.err:
        pytest.skip("this machine allows no mount in a namespace")
    assert code == 1
    return run.err


def no_room(world):
    usage = shutil.disk_usage(world.folder)._replace(free=1 << 20)
    world.monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    return world.run("--overwrite_checkpoints", save=world.checkpoint)


def held(world):
    lock = Lock(world.checkpoint)
    try:
        return world.run(save=world.checkpoint)
    finally:
        lock.release()


# The cases are in the order of the document's lines.
CASES = [
    lambda w: (w.ids(900, 3000), w.run())[1],
    lambda w: (cut(w.data / "train/cat_1.bin"), w.run())[1],
    lambda w: w.meanwhile(lambda: cut(w.data / "train/cat_1.bin", 200)),
    lambda w: w.meanwhile(lambda: shutil.rmtree(w.data / "test"), "--test_freq", "400"),
    lambda w: w.run("--optimizer", "sgd", "--learning_rate", "3e38"),
    full_disk,
    no_room,
    lambda w: w.run(save=w.checkpoint),
    held,
    lambda w: w.meanwhile(lambda: signal.raise_signal(signal.SIGTERM), "--overwrite_checkpoints", save=w.checkpoint),
    lambda w: w.meanwhile(lambda: StopRequest.ask("the launcher (horovodrun, process 7) is gone"), "--overwrite_checkpoints", save=w.checkpoint),
    lambda w: (w.flip("tables/cat_0/weights/c/0/0"), w.run(restore=True))[1],
    lambda w: (cut(w.newest / "tables/cat_1/velocity/c/0/0"), w.run(restore=True))[1],
    lambda w: ((w.newest / "dense/top_mlp/0/kernel/zarr.json").unlink(), w.run(restore=True))[1],
    lambda w: (cut(w.newest / "manifest.json"), w.run(restore=True))[1],
    lambda w: w.run("--restore_checkpoint_path", w.folder / "NOWHERE"),
    lambda w: w.run("--restore_checkpoint_path", w.data),
    lambda w: w.run("--embedding_dim", "8", "--bottom_mlp_dims", "8", restore=True),
    lambda w: (w.spec("cardinality: 3000", "cardinality: 3001"), w.run(restore=True))[1],
    lambda w: (w.spec("cardinality: 3000", "cardinality: 2999"), w.ids(slice(None), 1), w.run("--allow_growth", restore=True))[2],
    lambda w: w.run("--batch_size", "32", restore=True),
    lambda w: (w.ids(7, 7), w.run(restore=True))[1],
    lambda w: w.run("--resume", "auto"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture(scope="module")
def checkpoint(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    in_process("--dataset_path", dataset, "--save_checkpoint_path", folder / "c", "--checkpoint_every_steps", 8, *RUN, "--log_path", "")
    return folder / "c"


@pytest.fixture(autouse=True)
def _end_what_was_started():
    yield
    Victim.end_all()


@pytest.fixture
def world(tmp_path, dataset, checkpoint, capfd, monkeypatch):
    return World(tmp_path, dataset, checkpoint, capfd, monkeypatch)


def test_every_documented_line_has_a_case():
    assert len(LINES) == len(CASES)


@pytest.mark.parametrize(
    ("line", "case"), list(zip(LINES, CASES, strict=False)), ids=[re.sub(r"\W+", "-", line)[15:60] for line in LINES][: len(CASES)]
)
def test_documented_line_is_the_printed_line(world, line, case):
    said = [text for text in case(world).splitlines() if text.startswith("dlrm.py: error")]
    assert len(said) == 1, said
    expected = re.escape(line).replace("STEP", r"\d+").replace("…", ".*")
    assert re.fullmatch(expected, said[0].replace(f"{world.folder}/", "")), said[0]
