"""Tests of main.py on two workers with the Parquet files of NVIDIA's Wide & Deep: the weights are those of one worker, and of tf_raw."""

import numpy as np
from launching import ROOT

from tests.dataloading.parquet.outbrain_files import write_files, write_raw
from tests.distributed.resident import do_in_turn
from utils.checkpoint.reading import Checkpoint

FLAGS = "--cpu --deep_hidden_units 16 8 --embedding_dim 8 --global_batch_size 128 --eval_batch_size 128 --num_epochs 2 --deep_warmup_epochs 0.5"
SHUFFLED = "--shuffle_window 3 --shuffle_batch_order --gradient_slices 8 --affinity unique_interleaved"


def test_two_workers_train_to_the_bits_of_one_and_of_tf_raw(tmp_path):
    """The last batch is short, lists are averaged, and neither file holds a whole number of batches."""
    write_raw(tmp_path / "raw", write_files(tmp_path / "parquet"))
    found = {}
    for name, workers in (("raw", 1), ("parquet", 1), ("parquet", 2)):
        folder = tmp_path / f"{name} {workers}"
        flags = (*FLAGS.split(), *SHUFFLED.split(), "--combiner", "mean", "--model_dir", folder, "--results_dir", folder)
        result = do_in_turn(workers, [("--dataset_path", tmp_path / name, *flags)], ROOT / "main.py")
        assert result.code == 0, result.err
        checkpoint = Checkpoint(folder / "checkpoint")
        found[name, workers] = {array: checkpoint.read(array) for array in checkpoint.names("")}
    expected = found["raw", 1]
    for arrays in found.values():
        assert arrays.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(arrays[name], values, err_msg=name)
