"""Tests that merged scores for metrics by group have the same bits for any number of workers and any batch size."""

from types import SimpleNamespace

import numpy as np
import pytest

from dataloading.batches import BatchReader, Share
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from tests.dataloading.make_data import random_rows, rich_spec
from training.evaluator import Scores
from utils.distributed import World
from utils.metrics.ranking import rank
from utils.metrics.ranking_metric import parse

METRICS = parse(["map@12", "ndcg@10", "mrr", "recall@5", "group_auc", "gauc"])
ROWS = 1003  # no batch size and no number of workers divides it


class InTurn(World):
    """A worker for which all workers of higher rank have already sent their data."""

    def __init__(self, rank, size, sent):
        super().__init__(rank, size)
        self._sent = sent

    def gather_to_first(self, flat, name):
        self._sent[name, self.rank] = flat
        return np.concatenate([self._sent[name, other] for other in range(self.size)]) if self.first else flat[:0]


@pytest.fixture(scope="module", params=["int32", "int64"])
def split(request, tmp_path_factory):
    """Write a split whose groups are spread over all batches: some groups have many rows, and many have a single row."""
    spec, draw = rich_spec(group=request.param), np.random.default_rng(3)
    limits = np.iinfo(request.param)
    groups = np.concatenate([draw.choice([limits.min, -1, 0, 7, limits.max], 503), draw.permutation(np.arange(100, 600))])
    with TfRawWriter(tmp_path_factory.mktemp("data") / "d", spec, ("test",)) as writer:
        writer.append("test", *random_rows(spec, ROWS), draw.permutation(groups))
        return TfRawSplit(writer.publish({}), "test")


def scored(split, workers, batch_size, short_last):
    """Merge the scores of so many workers; a sample's score is its first numerical value, rounded so that many tie."""
    sent = {}
    for number in reversed(range(workers)):
        scores = Scores(InTurn(number, workers, sent))
        for batch in BatchReader(split, batch_size, Share((0,), rank=number, num_workers=workers), short_last=short_last).epoch():
            scores.add(np.round(batch.numerical[:, 0].astype(np.float32), 2), batch, groups=True)
        found = scores.merged()
        assert (found is None) == (number > 0)
    return found


def test_group_metrics_are_equal_for_any_number_of_workers(split):
    read = split.read_numerical(0, ROWS)[:, 0].astype(np.float32), split.read_labels(0, ROWS), split.read_group(0, ROWS)
    expected = rank(np.round(read[0], 2), *read[1:], METRICS)
    assert expected.groups == 505 and None not in expected.values.values()
    for workers in (1, 2, 3):
        for batch_size in (6, 60, 600, 6000):
            for short_last in (False, True):
                found = scored(split, workers, batch_size, short_last)
                assert found.groups.dtype == split.spec.group_dtype
                assert rank(found.logits, found.labels, found.groups, METRICS) == expected, (workers, batch_size)


def test_groups_are_gathered_only_where_they_are_wanted():
    scores = Scores(World())
    scores.add(np.zeros(3, np.float32), SimpleNamespace(labels=np.zeros(3, np.uint8), num_samples=2, total_weight=None))
    found = scores.merged()
    assert found.groups is None and len(found.logits) == len(found.labels) == 2
