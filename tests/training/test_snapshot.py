"""Tests that a table read during training gives the rows at the time of the snapshot."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from model.embedding.partial_table import PartialTable
from model.embedding.placement import Shard
from model.embedding.shard import LocalShard
from model.embedding.table import Table
from tests.model.tiny_model import batch, model_and_trainer, weights
from training import snapshot as kept
from training.position import Position
from training.report import StepReport
from training.saving import Checkpoints, Saver
from training.snapshot import Snapshot
from training.state import arrays, parts, snapshot
from utils.checkpoint import writing as files
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import Saving
from utils.dialects.command_line import parse
from utils.distributed import World


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), chunk=st.integers(1, 12), seed=st.integers(0, 2**32 - 1), steps_a_chunk=st.integers(0, 3), share=st.booleans())
def test_snapshot_gives_the_initial_rows_despite_updates(rows, chunk, seed, steps_a_chunk, share):
    draw = np.random.default_rng(seed)
    before = draw.normal(size=(2, rows, 3)).astype(np.float32)
    variables = [tf.Variable(np.concatenate(before))] * 2 if share else [tf.Variable(values) for values in before]
    shards = [LocalShard(name, Shard(i, rows, 0, 3), False, "", variables[i], i * rows * share) for i, name in enumerate("ab")]
    taken, found = Snapshot(shards, [(1,), (0,)]), [[], []]
    for start in range(0, rows, chunk):
        for _ in range(steps_a_chunk):
            ids = draw.integers(0, rows, (2, draw.integers(1, rows + 1))).astype(np.int32)
            taken.protect(ids)
            for shard, touched in zip(shards, reversed(ids), strict=True):
                for row in touched:
                    shard.kinds()["weights"].write(int(row), draw.normal(size=(1, 3)).astype(np.float32))
        for number, chunks in enumerate(found):
            chunks.append(taken.rows(number, "weights").read(start, min(start + chunk, rows)))
    for number, values in enumerate(before):
        np.testing.assert_array_equal(np.concatenate(found[number]), values)
    assert taken.bytes == 0  # no copies are kept once all rows are read


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), chunk=st.integers(1, 12), seed=st.integers(0, 2**32 - 1), steps_a_chunk=st.integers(0, 3), share=st.floats(0, 1))
def test_snapshot_of_a_partial_table_gives_the_changed_rows_despite_updates(rows, chunk, seed, steps_a_chunk, share):
    """Also rows that were not changed at the time of the snapshot may change; they are not read."""
    draw = np.random.default_rng(seed)
    before, changed = draw.normal(size=(rows, 3)).astype(np.float32), np.flatnonzero(draw.random(rows) < share)
    variable, offset = tf.Variable(np.concatenate([np.full((2, 3), 7, np.float32), before])), 2
    partial = PartialTable(Table("a", rows, 3, partial=True), 0)
    local = LocalShard("a", Shard(0, rows, 0, 3), False, "", variable, offset, partial=partial)
    taken, found = Snapshot([local], [(0,)], changed=lambda local: changed), [np.empty((0, 3))]
    np.testing.assert_array_equal(taken.numbers(0), changed)
    for start in range(0, len(changed), chunk):
        for _ in range(steps_a_chunk):
            ids = draw.integers(-1, rows, (1, draw.integers(1, rows + 1))).astype(np.int32)
            taken.protect(ids)
            for row in ids[ids >= 0]:
                local.kinds()["weights"].write(int(row), draw.normal(size=(1, 3)).astype(np.float32))
        found.append(taken.rows(0, "weights").read(start, min(start + chunk, len(changed))))
    np.testing.assert_array_equal(np.concatenate(found), before[changed])
    assert taken.bytes == 0


def options(*flags):
    return parse(["--dataset_type", "synthetic", *flags], "").training


@pytest.mark.parametrize(
    ("partial", "optimizer", "kept_bytes"),
    [(False, "sgd", 1 << 29), (True, "adam", 1 << 29), (False, "adam", 0), (True, "sgd", 0)],
    ids=["all rows, rows are kept", "touched rows, rows are kept", "all rows, training waits", "touched rows, training waits"],
)
def test_checkpoint_written_during_later_steps_has_the_weights_of_its_step(tmp_path, monkeypatch, kept_bytes, optimizer, partial):
    monkeypatch.setattr(files, "CHUNK_BYTES", 2 * 4 * 4)  # two rows per chunk
    monkeypatch.setattr(files, "IN_FLIGHT", 1)  # one chunk at a time, so that writing lasts several steps
    monkeypatch.setattr(kept, "KEPT_BYTES", kept_bytes)
    model, trainer = model_and_trainer("--optimizer", optimizer, partial=partial)
    said, first = [], 3 if partial else 16  # so that some rows are not touched in the first step

    flags, position = options("--checkpoint_every_steps", "1", "--save_checkpoint_path", str(tmp_path)), Position()
    saves = Checkpoints(Saver(model, trainer.groups, flags, {}, alone=False, touched=trainer.touched), flags, position, said.append)
    trainer.step(batch(first), 0, 0.1)
    position.step = 1
    assert saves.is_due(False)
    expected = {name: values.copy() for name, values in weights(model).items()}
    saves.write()
    step, ended, begun = 1, None, time.monotonic()
    while ended is None:
        one = batch(16, seed=step)
        saves.before_step(one)
        trainer.step(one, step, 0.1)
        saves.after_step()
        _, writing = saves.state()
        saves.take_report(step, StepReport(0.5, True, False, 0, False, writing))
        step += 1
        ended = step if said else None
        assert time.monotonic() < begun + 120  # a busy disk takes many steps
    assert step > (5 if kept_bytes else 1)
    found = Checkpoint(tmp_path)
    assert not partial or 0 < found.touched_table("user").count <= first < 7
    for name, values in expected.items():
        np.testing.assert_array_equal(found.read(name), values, name)
    assert any(not np.array_equal(values, expected[name]) for name, values in weights(model).items())


def test_failed_save_fails_the_run_and_leaves_no_files(tmp_path):
    def fail(start, stop):
        raise OSError(28, "No space left on device", "disk")

    model, _ = model_and_trainer()
    written = parts(model, None, snapshot(model))
    written[-1] = files.ArrayPart(written[-1].array, fail, written[-1].columns, later=True)
    saver = SimpleNamespace(begin=lambda position, best: (Saving(tmp_path, 1, arrays(model), written, {}, World()), snapshot(model)))
    saves = Checkpoints(saver, options(), Position())
    saves.write()
    while saves.state()[1]:
        saves.after_step()
    with pytest.raises(files.UserError, match="disk: No space left on device"):
        saves.take_report(1, StepReport(0.5, True, False, 0, False, False))
    assert list(tmp_path.iterdir()) == []
