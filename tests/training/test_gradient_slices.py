"""Tests of the number of slices of a batch, of the numbers of workers for which sums keep their order, and of the warnings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ordered_sums import pairwise_sum, parts
from model.slices import keeps_order, same_bits
from tests.model.tiny_model import config
from training.gradient_slices import default_gradient_slices, gradient_slices, gradient_slices_described, with_gradient_slices


@pytest.mark.parametrize(
    ("batch_size", "device", "expected"),
    [
        (65536, "CPU", 8),
        (8192, "CPU", 8),
        (8191, "CPU", 1),
        (8190, "CPU", 2),  # 8190 = 2 · 4095
        (4096, "CPU", 4),
        (2048, "CPU", 2),
        (2047, "CPU", 1),
        (1024, "CPU", 1),
        (128, "CPU", 1),
        (1, "CPU", 1),
        (65536, "GPU", 1),
    ],
)
def test_the_default_follows_from_the_batch_and_the_device(batch_size, device, expected):
    assert default_gradient_slices(batch_size, device) == expected


def test_flag_overrides_the_default():
    assert gradient_slices(config("--batch_size", "8192"), "CPU") == 8
    assert gradient_slices(config("--batch_size", "8192", "--gradient_slices", "3"), "CPU") == 3


@pytest.mark.parametrize(
    ("slices", "batch_size", "workers"),
    [
        (8, 128, [1, 2, 4, 8]),
        (1, 128, [1]),
        (6, 96, [1, 3, 6]),
        (12, 96, [1, 3, 6, 12]),
        (7, 7, [1, 7]),
        (8, 100, []),
        (2**30, 2**30, [2**i for i in range(31)]),
    ],
)
def test_workers_that_keep_the_order(slices, batch_size, workers):
    assert same_bits(slices, batch_size) == workers


@given(workers=st.integers(1, 24), share=st.integers(1, 24), seed=st.integers(0, 2**32 - 1))
def test_where_the_order_is_kept_the_sums_have_the_bits_of_one_worker(workers, share, seed):
    slices = workers * share
    values = np.random.default_rng(seed).normal(size=(slices, 20)).astype(np.float32)
    if keeps_order(slices, slices, workers):
        by_worker = [pairwise_sum(list(values[worker * share : (worker + 1) * share])) for worker in range(workers)]
        np.testing.assert_array_equal(pairwise_sum(by_worker), pairwise_sum(list(values)))


@given(slices=st.integers(1, 300), samples=st.integers(1, 300))
def test_parts_of_a_worker_are_whole_subtrees_of_its_sum(slices, samples):
    count, together = parts(slices, slices * samples)
    assert count * (together or 1) == slices
    assert together in (None, 1, 2, 4, 8)
    assert (together is None) == (samples >= 128)


@pytest.mark.parametrize(
    ("flags", "workers", "device", "expected"),
    [
        (("--batch_size", "8192"), 2, "CPU", "are the same for 1, 2, 4 or 8 workers (8 slices of gradients)"),
        (("--batch_size", "8192"), 3, "CPU", "depend on the number of workers: 3 cannot share 8 slices of gradients (--gradient_slices)"),
        (("--batch_size", "128"), 1, "CPU", "the gradients are summed as a whole; --gradient_slices 8 makes them the same for 1, 2, 4 or 8"),
        (("--batch_size", "128"), 3, "CPU", "depend on the number of workers: the gradients are summed as a whole"),
        (("--batch_size", "100"), 1, "CPU", "depend on the number of workers: the gradients are summed as a whole"),
        (("--batch_size", "100", "--gradient_slices", "8"), 1, "CPU", "a batch of 100 cannot be cut into 8 slices of gradients (--gradient_slices)"),
        (("--batch_size", "96", "--gradient_slices", "6"), 1, "CPU", "are the same for 1, 3 or 6 workers (6 slices of gradients)"),
        (("--batch_size", "96", "--gradient_slices", "6"), 2, "CPU", "depend on the number of workers: 2 cannot share 6 slices"),
        (("--batch_size", "8192"), 2, "GPU", "depend on the number of workers: a GPU adds the gradients of repeated ids in no fixed order"),
        (("--batch_size", "8192", "--xla", "all"), 2, "CPU", "depend on the number of workers: --xla all compiles other shapes for each number"),
    ],
)
def test_message_about_the_bits_of_the_weights(flags, workers, device, expected):
    assert expected in gradient_slices_described(config(*flags), workers, device)


@pytest.mark.parametrize(
    ("flags", "workers", "device", "expected"),
    [
        (("--batch_size", "100", "--gradient_slices", "8"), 3, "CPU", "a batch of 100 cannot be cut into 8 equal slices"),
        (("--batch_size", "96", "--gradient_slices", "8"), 3, "CPU", "no effect on 3 workers; expected 1, 2, 4 or 8"),
        (("--batch_size", "96", "--gradient_slices", "8"), 2, "GPU", "--gradient_slices 8 costs time without a benefit on a GPU"),
        (("--batch_size", "96", "--gradient_slices", "8"), 2, "CPU", None),
        (("--batch_size", "100", "--gradient_slices", "1"), 3, "GPU", None),
        (("--batch_size", "8192"), 3, "CPU", None),  # no slices were asked for
    ],
)
def test_flag_without_effect_is_a_warning(flags, workers, device, expected):
    said = []
    found = with_gradient_slices(config(*flags), device, workers, said.append)
    assert found.device.gradient_slices == gradient_slices(config(*flags), device)
    assert (len(said) == 1 and expected in said[0]) if expected else not said
