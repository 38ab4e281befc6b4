"""The estimate of a step on a GPU counts the work that a step does."""

import pytest

from benchmarks.gpu.estimate import DEVICES, LAUNCHES_MS, step
from benchmarks.workload import Workload, options
from utils.config.options import ModelConfig

BATCH, FEATURES = 65536, 26


def test_products_are_those_of_the_layers():
    work = Workload((10,) * FEATURES, options("--batch_size", BATCH))
    inputs, outputs = work.layers[0]
    layers = sum(one.flops for one in step(BATCH, FEATURES, ModelConfig()) if one.name.startswith("MLPs"))
    assert layers == work.product_flops - 2 * BATCH * inputs * outputs  # the gradient of the numerical features is never computed


def test_rows_are_read_once_and_updated_once():
    by_name = {one.name: one.bytes for one in step(BATCH, FEATURES, ModelConfig())}
    rows = 4 * BATCH * FEATURES * 128
    assert by_name["lookup"] == 2 * rows
    assert by_name["update of rows (read the gradient, add to the row)"] == 3 * rows


def test_estimate_grows_with_the_batch_and_falls_with_the_bandwidth():
    def milliseconds(batch, device):
        return sum(one.ms(device) for one in step(batch, FEATURES, ModelConfig())) + LAUNCHES_MS

    fast, medium, slow = (milliseconds(BATCH, device) for device in DEVICES)
    assert fast < medium < slow and fast <= 7
    assert milliseconds(2 * BATCH, DEVICES[0]) - LAUNCHES_MS == pytest.approx(2 * (fast - LAUNCHES_MS), rel=0.03)
