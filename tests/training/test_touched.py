"""Tests of the rows touched so far in a run: against sets of ids, for every placement, over checkpoints, and with damaged ones."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from model.embedding.placement import place, single
from model.embedding.table import Feature, Table
from tests.model.tiny_model import ROWS, batch, model_and_trainer
from training.position import Position
from training.saving import Saver
from training.touched import Touched
from utils.checkpoint.manifest import CheckpointError, DamagedError
from utils.checkpoint.reading import Checkpoint
from utils.config.options import TrainingConfig
from utils.distributed import World
from utils.errors import UserError

# Two features of one source (as in Wide & Deep), two features of one table, a list, and tables of 1 row and of a whole number of bytes.
TABLES = (Table("a", 13, 4), Table("b", 8, 4), Table("c", 1, 4), Table("wide", 13, 1), Table("d", 300, 4))
FEATURES = (
    Feature("a", "a", "a", hotness=3),
    Feature("b", "b", "b"),
    Feature("other_b", "other_b", "b"),
    Feature("c", "c", "c"),
    Feature("wide_a", "a", "wide", hotness=3),
    Feature("d", "d", "d"),
)
SOURCES = {"a": (13, 3), "b": (8, 1), "other_b": (8, 1), "c": (1, 1), "d": (300, 1)}  # rows and hotness, in the order of the first feature


class Meeting(World):
    """A worker of several in one process; `gather_to_first` is called on the first worker last."""

    def __init__(self, rank, size, sent):
        super().__init__(rank, size)
        self.sent = sent

    def gather_to_first(self, flat, name):
        self.sent[self.rank] = flat
        return np.concatenate([self.sent[rank] for rank in range(self.size)]) if self.first else flat[:0]


def workers(placement):
    """Return the `Touched` of each worker of a placement."""
    size, sent = len(placement.workers), {}
    made = (SimpleNamespace(placement=placement, world=Meeting(rank, size, sent), view=placement.view(rank), lazy=None) for rank in range(size))
    return list(map(Touched, made))


def shares(found):
    return [one.shares() for one in reversed(found)][-1]


def drawn(draw, size):
    """Draw the ids of each source, `[h, B]`; −1 in lists where a sample has fewer ids."""
    found = [draw.integers(-1 if hotness > 1 else 0, rows, (hotness, size)).astype(np.int32) for rows, hotness in SOURCES.values()]
    found[-1] = np.minimum(found[-1], 200)
    return found


def part(placement, rank, ids):
    """Return a worker's part of a batch."""
    view, share = placement.view(rank), ids[0].shape[1] // len(placement.workers)
    empty = np.empty((0, ids[0].shape[1]), np.int32)
    whole = np.concatenate([empty, *(ids[source] for source in view.global_features)])
    local = np.concatenate([empty, *(ids[source] for source in view.local_features)])[:, rank * share : (rank + 1) * share]
    return SimpleNamespace(host=SimpleNamespace(ids=whole, local_ids=local), placed=None)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"column_slice_threshold": 26}, {"data_parallel_threshold": 40}, {"data_parallel_threshold": 10_000}])
def test_shares_are_those_of_the_sets_of_ids(size, options):
    placement = place(TABLES, size, features=FEATURES, **options)
    found, draw, seen = workers(placement), np.random.default_rng(size), {table.name: set() for table in TABLES}
    assert shares(found) == dict.fromkeys(seen, 0.0)
    for _ in range(3):
        ids = drawn(draw, 8)
        for rank, one in enumerate(found):
            one.add(part(placement, rank, ids))
        for feature, source in zip(FEATURES, placement.source_of, strict=True):
            seen[feature.table] |= set(ids[source].ravel().tolist()) - {-1}
        assert shares(found) == {table.name: len(seen[table.name]) / table.rows for table in TABLES}
    assert 0 < shares(found)["d"] < 1 and shares(found)["c"] == 1


def test_missing_ids_touch_no_row():
    (found,) = workers(single(TABLES, FEATURES))
    ids = [np.full((hotness, 4), -1 if hotness > 1 else 0, np.int32) for _, hotness in SOURCES.values()]
    found.add(part(single(TABLES, FEATURES), 0, ids))
    assert found.shares() == {"a": 0, "b": 1 / 8, "c": 1, "wide": 0, "d": 1 / 300}


def saved(tmp_path, steps=2, **options):
    """Train the tiny model for some steps and save it; return its trainer and the checkpoint's folder."""
    model, trainer = model_and_trainer()
    saver = Saver(
        model, trainer.groups, TrainingConfig(save_checkpoint_path=str(tmp_path)), {}, alone=True, **(options or {"touched": trainer.touched})
    )
    for step in range(steps):
        trainer.step(batch(2, seed=step), step, 0.1)
    saving, _ = saver.begin(Position(step=steps), best=False)
    return trainer, saving.finish()


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    """Train and save once; return the trainer and the checkpoint's folder, which no test may change."""
    return saved(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def copied(saved_once, tmp_path):
    """Return a copy of the checkpoint's folder, for a test that damages it."""
    return shutil.copytree(saved_once[1], tmp_path / saved_once[1].name)


def test_a_checkpoint_restores_the_marks_on_any_number_of_workers(saved_once):
    trainer, folder = saved_once
    expected = trainer.touched.shares()
    assert expected.keys() == ROWS.keys() and min(expected.values()) > 0 and min(expected["user"], expected["item"]) < 1
    _, other = model_and_trainer()
    other.touched.restore(Checkpoint(folder))
    assert other.touched.shares() == expected and other.touched.since == 0
    for options in ({}, {"column_slice_threshold": 8}, {"data_parallel_threshold": 12}):
        found = workers(place([Table(name, rows, 4) for name, rows in ROWS.items()], 2, **options))
        for one in found:
            one.restore(Checkpoint(folder))
        assert shares(found) == expected
    assert (folder / "touched.bin").stat().st_size == 1 + 1 + 1 + 4  # a bit a row of each table, and the checksum


def test_equal_runs_keep_equal_marks(tmp_path):
    one, other = (saved(tmp_path / name)[1] for name in ("one", "other"))
    assert (one / "touched.bin").read_bytes() == (other / "touched.bin").read_bytes()


def test_rows_are_counted_since_the_resume_of_a_checkpoint_without_marks(tmp_path):
    _, folder = saved(tmp_path, steps=3, touched=None)
    assert not (folder / "touched.bin").exists()
    _, trainer = model_and_trainer()
    trainer.touched.restore(Checkpoint(folder))
    assert trainer.touched.since == 3 and set(trainer.touched.shares().values()) == {0.0}
    assert trainer.touched.described()["touched"]["since"] == 3  # the checkpoints of the resumed run say so, too


@pytest.mark.parametrize("bit", [0, 8, 23, 24, 55])
def test_flipped_bit_is_an_error_that_names_the_file(copied, bit):
    path = copied / "touched.bin"
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)

    def restored():
        checkpoint = Checkpoint(copied)
        checkpoint.verify(World())

    with pytest.raises(UserError, match=r"touched.bin: its checksum .*; the checkpoint is damaged"):
        restored()
    if bit < 24:  # the manifest records the end of the file only
        _, trainer = model_and_trainer()
        with pytest.raises(DamagedError, match=r"touched.bin: its checksum is wrong; the checkpoint is damaged"):
            trainer.touched.restore(Checkpoint(copied))


def test_file_that_is_missing_is_an_error(copied):
    (copied / "touched.bin").unlink()
    with pytest.raises(DamagedError, match=r"touched.bin: No such file"):
        Checkpoint(copied)


def test_marks_of_other_tables_are_refused(copied):
    (found,) = workers(single([Table(name, rows + 1, 4) for name, rows in ROWS.items()]))
    with pytest.raises(CheckpointError, match=r"touched.bin: holds the rows touched of other tables than the model's"):
        found.restore(Checkpoint(copied))
