"""Impossible values in a manifest whose checksum is right."""

import copy

import pytest

from utils.checkpoint import manifest
from utils.checkpoint.manifest import DamagedError

SOUND = {
    "step": 17,
    "position": {"step": 17, "epoch": 2, "batch": 3, "samples": 1650, "best_auc": 0.75, "evals_without_gain": 1},
    "run": {"batch_size": 100, "train_samples": 650},
    "vocabularies": {"cat_0": {"values": 9, "digest": "aa"}},
}


def read(folder, content):
    manifest.write(folder, content)
    return manifest.read(folder)


def changed(path, value):
    content = copy.deepcopy(SOUND)
    *above, last = path.split(".")
    node = content
    for name in above:
        node = node[name]
    node[last] = value
    if path == "step":
        content.pop("position")
    return content


@pytest.mark.parametrize(
    "content",
    [
        SOUND,
        {"step": 0},
        changed("position.best_auc", None),
        changed("position.best_auc", 1),
        changed("position.another", {}),
        changed("position.mean_loss", None),
        changed("position.loss_sum", 0.5),
        changed("position.best_ranking", {"map_at_12": 0.5, "mrr": 1}),
        changed("run", {}),
        SOUND | {"step": 14, "position": SOUND["position"] | {"step": 14, "epoch": 1, "batch": 7}},  # the position at the end of an epoch
    ],
)
def test_valid_values_are_read(tmp_path, content):
    assert read(tmp_path, content)["step"] == content["step"]


@pytest.mark.parametrize(("samples", "batch_size", "batches"), [(1, 1, 1), (1, 100, 1), (650, 1, 650)])
def test_positions_in_the_smallest_epochs(tmp_path, samples, batch_size, batches):
    run = {"run": {"batch_size": batch_size, "train_samples": samples}}
    with pytest.raises(DamagedError, match=f"which is impossible in epochs of {batches} batch"):
        read(tmp_path, SOUND | run)
    sound = {"step": 2 * batches, "epoch": 2, "batch": 0, "samples": 2 * samples}
    assert read(tmp_path, SOUND | run | {"step": 2 * batches, "position": SOUND["position"] | sound})["step"] == 2 * batches


@pytest.mark.parametrize("name", ["step", "epoch", "batch"])
def test_incomplete_position_is_read(tmp_path, name):
    content = copy.deepcopy(SOUND)
    del content["position"][name]
    assert read(tmp_path, content)["position"] == content["position"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("step", -1, "step is -1, expected a whole number of at least 0"),
        ("step", "x", "step is 'x', expected a whole number"),
        ("step", 1.5, "step is 1.5"),
        ("position.step", 18, "position.step is 18, step is 17; expected the same"),
        ("position.batch", -3, "position.batch is -3, expected a whole number of at least 0"),
        ("position.batch", 4, "position is step 17, epoch 2, batch 4, which is impossible in epochs of 7 batches"),
        ("position.epoch", 1, "which is impossible in epochs of 7 batches"),
        ("position.epoch", True, "position.epoch is True"),
        ("position.samples", None, "position.samples is None"),
        ("position.skipped_steps", 0.5, "position.skipped_steps is 0.5, expected a whole number of at least 0"),
        ("position.loss_sum", None, "position.loss_sum is None, expected a finite number"),
        ("position.mean_loss", "x", "position.mean_loss is 'x', expected a finite number"),
        ("position.best_auc", "x", "position.best_auc is 'x', expected null or a number from 0 to 1"),
        ("position.best_auc", float("nan"), "position.best_auc is nan"),
        ("position.best_auc", -0.5, "position.best_auc is -0.5"),
        ("position.last_auc", "x", "position.last_auc is 'x', expected null or a number from 0 to 1"),
        ("position.best_ranking", 0.5, "position.best_ranking is 0.5, expected a mapping of metrics to numbers from 0 to 1"),
        ("position.best_ranking", {"mrr": 2.0}, "position.best_ranking is {'mrr': 2.0}, expected a mapping"),
        ("position.evaluation_due", 1, "position.evaluation_due is 1, expected true or false"),
        ("position.evals_without_gain", -1, "position.evals_without_gain is -1"),
        ("vocabularies", [], "vocabularies is [], expected a mapping"),
        ("vocabularies.cat_0", 3, "vocabularies.cat_0 is 3"),
        ("vocabularies.cat_0.values", -1, "vocabularies.cat_0.values is -1"),
        ("vocabularies.cat_0.digest", 3, "expected a mapping with values and digest"),
    ],
)
def test_invalid_value_is_a_one_line_error(tmp_path, path, value, message):
    with pytest.raises(DamagedError) as raised:
        read(tmp_path, changed(path, value))
    text = str(raised.value)
    assert text.startswith(f"{tmp_path}/manifest.json: {message}") or message in text
    assert text.endswith("; the checkpoint is damaged") and "\n" not in text
