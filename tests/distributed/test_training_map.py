"""Tests of wide_and_deep.py on several workers: the log's figures of a batch are those of the global batch."""

import json
from dataclasses import replace

import numpy as np
from launching import ROOT

from dataloading.feature_spec import generator_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from tests.distributed.resident import do_in_turn

KEYS = ("binary_accuracy", "auc", "loss", "streaming_map")
FLAGS = "--cpu --deep_hidden_units 16 8 --embedding_dim 8 --global_batch_size 96 --eval_batch_size 96 --num_epochs 1 --deep_warmup_epochs 0.5"


def write(folder, rows=280):
    """Write a dataset whose displays of five rows cross the workers' shares and the batches; the last batch is short. Return its folder."""
    spec = generator_spec((50, 300, 7), 3, 1.2)
    spec = replace(spec, group="display", dtypes=dict(spec.dtypes) | {"display": "int32"})
    with TfRawWriter(folder, spec, ("train", "test")) as writer:
        for split in ("train", "test"):
            numerical, ids, labels, _ = SyntheticSplit(spec, split, rows, seed=1).read_rows(0, rows)
            writer.append(split, numerical, ids, labels, np.arange(rows) // 5)
        writer.publish({})
    return folder


def test_figures_of_a_batch_do_not_depend_on_the_workers(tmp_path):
    data, found = write(tmp_path / "data"), {}
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        flags = ("--dataset_path", data, *FLAGS.split(), "--print_freq", "1", "--model_dir", folder, "--results_dir", folder)
        result = do_in_turn(workers, [flags], ROOT / "main.py")
        assert result.code == 0, result.err
        lines = [json.loads(line.removeprefix("DLLL ")) for line in (folder / "log.json").read_text().splitlines()]
        found[workers] = [[line["data"][key] for key in KEYS] for line in lines if "mean_loss" in line.get("data", {})]
    assert len(found[1]) == 3 and found[1] == found[2]
