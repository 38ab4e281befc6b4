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
