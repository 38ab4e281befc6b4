"""Two workers on NVIDIA's split_tfrecords, and on a synthetic dataset that the first of them stores, train what one worker trains on tf_raw."""

import json

import numpy as np
import pytest
from launching import in_process

from dataloading import transcribe
from tests.distributed.resident import do_in_turn
from utils.checkpoint.reading import Checkpoint

FLAGS = """--cpu --embedding_dim 4 --bottom_mlp_dims 8,4 --top_mlp_dims 8,1 --batch_size 32 --valid_batch_size 32 --gradient_slices 8
    --optimizer adam --learning_rate 0.01 --warmup_steps 0 --shuffle_batch_order""".split()
DRAWN = """--dataset_type synthetic_disk --synthetic_dataset_table_sizes 50,9,300 --num_numerical_features 2 --synthetic_dataset_num_entries 320
    --synthetic_dataset_hotness 1,3,1""".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train on two workers on stored synthetic data, and on the same rows as records, and on one worker on those rows as tf_raw."""
    base = tmp_path_factory.mktemp("nvidia")
    raw, records = base / "raw", base / "records"

    def train(name, workers, *flags):
        folder = base / name
        flags = (*flags, *FLAGS, "--save_checkpoint_path", folder / "checkpoint", "--log_path", folder / "log.json")
        if workers == 1:
            in_process(*flags)
            return folder
        result = do_in_turn(workers, [flags])
        assert result.code == 0, result.err
        return folder

    found = {"stored": train("stored", 2, *DRAWN, "--synthetic_dataset_dir", raw)}
    flags = ["--src_dataset_path", str(raw), "--dst_dataset_path", str(records), "--dst_dataset_type", "split_tfrecords", "--dst_prebatch_size", "32"]
    assert transcribe.main(flags) == 0
    found["records"] = train("records", 2, "--dataset_path", records, "--dataset_type", "split_tfrecords")
    found["raw"] = train("raw-on-one", 1, "--dataset_path", raw)
    return found


@pytest.mark.parametrize("name", ["stored", "records"])
def test_two_workers_end_with_the_weights_and_figures_of_one_on_tf_raw(trained, name):
    expected, found = (Checkpoint(trained[key] / "checkpoint") for key in ("raw", name))
    assert set(found.names("")) == set(expected.names("")) and found.step == 10
    for array in expected.names(""):
        np.testing.assert_array_equal(found.read(array), expected.read(array), err_msg=array)
    last = [json.loads((trained[key] / "log.json").read_text().splitlines()[-1].removeprefix("DLLL "))["data"] for key in ("raw", name)]
    assert last[0]["auc"] == last[1]["auc"] and last[1]["samples"] == 320
