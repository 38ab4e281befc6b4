"""Metrics computed part by part, compared with those of all parts at once."""

import numpy as np
import pytest

from utils.metrics.binary import evaluate
from utils.metrics.running import RunningMetrics


@pytest.mark.parametrize("seed", range(20))
def test_metrics_after_each_part_match_all_samples_so_far(seed):
    rng = np.random.default_rng(seed)
    running, logits, labels = RunningMetrics(), np.empty(0, np.float32), np.empty(0, np.uint8)
    for _ in range(12):
        size = int(rng.integers(0, 200))
        some = rng.normal(size=size).round(int(rng.integers(0, 4))).astype(np.float32)  # many ties, zeros of both signs
        of_some = (rng.random(size) < rng.choice([0, 0.03, 0.5, 1])).astype(np.uint8)  # also parts of one class
        running.add(some, of_some)
        logits, labels = np.concatenate([logits, some]), np.concatenate([labels, of_some])
        assert running.samples == len(logits)
        if len(logits):
            expected = evaluate(logits, labels)
            assert running.auc == expected.auc and running.binary_accuracy == expected.binary_accuracy
            assert running.log_loss == pytest.approx(expected.log_loss, rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_weighted_metrics_after_each_part_match_all_samples_so_far(seed):
    rng = np.random.default_rng(seed)
    running, parts = RunningMetrics(), []
    for _ in range(8):
        size = int(rng.integers(0, 200))
        some = rng.normal(size=size).round(int(rng.integers(0, 4))).astype(np.float32)
        of_some = (rng.random(size) < rng.choice([0, 0.03, 0.5, 1])).astype(np.uint8)
        shown = rng.random(size) < rng.choice([0, 0.5, 1])  # also parts without any weight
        weights = (10 ** rng.uniform(-30, 30, size)).astype(np.float32) * shown
        running.add(some, of_some, weights)
        parts.append((some, of_some, weights))
        logits, labels, all_weights = map(np.concatenate, zip(*parts, strict=True))
        expected = evaluate(logits, labels, weights=all_weights)
        assert (running.samples, running.auc) == (expected.samples, expected.auc)
        assert running.log_loss == pytest.approx(expected.log_loss, rel=1e-12, nan_ok=True)
        assert running.binary_accuracy is expected.binary_accuracy is None or running.binary_accuracy == pytest.approx(
            expected.binary_accuracy, rel=1e-12
        )


@pytest.mark.parametrize("first", [None, np.ones(2, np.float32)])
def test_parts_with_weights_and_parts_without_do_not_mix(first):
    running, rows = RunningMetrics(), (np.zeros(2, np.float32), np.zeros(2))
    running.add(*rows, first)
    with pytest.raises(ValueError, match="give weights for all parts or for none"):
        running.add(*rows, None if first is not None else np.ones(2, np.float32))
