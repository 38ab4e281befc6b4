"""Tests that the bytes workers send, the files they read and the threads they use are as planned."""

import os

import pytest
from small_data import LISTS
from trainings import CHOSEN, TRAININGS

from dataloading.features import weights_file

CASES = [(workers, name) for workers in (2, 3, 4) for name in CHOSEN[workers]]


@pytest.mark.parametrize(("workers", "name"), CASES, ids=lambda value: str(value).replace(" ", "-"))
def test_the_plan_predicts_the_bytes_that_every_worker_sends(trained, workers, name):
    outcome = trained(workers)[name]
    assert len(outcome.plan["workers"]) == workers
    for worker, calls in zip(outcome.plan["workers"], outcome.calls, strict=True):
        embedding = sum(count for _, kind, count in calls if kind.startswith("embedding_"))
        dense = sum(count for _, kind, count in calls if kind.startswith("dense_gradients"))
        statistics = sum(count for _, kind, count in calls if kind.startswith("batch_norm/"))
        assert (embedding, dense, statistics) == (worker["alltoall_bytes"], worker["dense_bytes"], worker["statistics_bytes"])
        norms = 16 * (workers - 1) * ("--clip_norm" in TRAININGS[name].flags)  # a float64 number, which the plan does not count
        assert embedding + dense + statistics + norms == sum(count for _, _, count in calls)


@pytest.mark.parametrize(("workers", "name"), CASES, ids=lambda value: str(value).replace(" ", "-"))
def test_a_step_takes_few_collectives_for_any_number_of_tables(trained, workers, name):
    expected = ["alltoall embedding_vectors", "alltoall embedding_gradients"]
    if name.startswith("replicated"):
        expected = []
    if name in ("mixed rowwise_adagrad", "sliced lists", "sliced whole", "mixed shapes"):  # the columns of a row lie on several workers
        expected += ["alltoall embedding_row_squares"]
    # Two workers need one addition, which has one order. Three workers, or one slice, cannot keep the order. Four exchange parts and gather sums.
    expected += (
        ["allreduce dense_gradients"]
        if workers < 4 or TRAININGS[name].slices == 1
        else ["alltoall dense_gradients_parts", "allgather dense_gradients_sums"]
    )
    if "--batch_norm" in TRAININGS[name].flags:  # forward and backward through each layer
        dlrm = ["bottom_mlp/0", "bottom_mlp/1", "top_mlp/0"]
        layers = {"sliced norm": ["deep/0"], "mixed finalmlp": ["stream1/0", "stream1/1", "stream2/0"]}.get(name, dlrm)
        expected += [f"allgather batch_norm/{layer}/{way}" for layer in layers for way in ("moments", "gradient")]
    expected += ["allreduce gradient_norm"] * ("--clip_norm" in TRAININGS[name].flags)
    for calls in trained(workers)[name].calls:
        assert sorted(f"{operation} {kind}" for operation, kind, _ in calls) == sorted(expected)


def test_half_as_many_tables_take_the_same_number_of_collectives(trained):
    counts = [len(trained(4)[name].calls[0]) for name in ("mixed sgd of four", "sliced sgd large")]
    assert counts[0] == counts[1]


def test_bfloat16_halves_the_vectors_and_not_the_dense_sums(trained):
    sent = [{kind: count for _, kind, count in trained(2)[name].calls[0]} for name in ("sliced adam", "sliced adam bfloat16")]
    for kind in ("embedding_vectors", "embedding_gradients"):
        assert sent[0][kind] == 2 * sent[1][kind] > 0
    assert sent[0]["dense_gradients"] == sent[1]["dense_gradients"]


@pytest.mark.parametrize(("workers", "name"), CASES, ids=lambda value: str(value).replace(" ", "-"))
def test_a_worker_opens_only_the_files_of_its_own_features(trained, workers, name):
    outcome = trained(workers)[name]
    for worker, files in zip(outcome.plan["workers"], outcome.files, strict=True):
        tables = {name.removesuffix("_wide") for name in ({piece["table"] for piece in worker["slices"]} | set(outcome.plan["replicated"]))}
        own = {feature.name for feature in LISTS.get(TRAININGS[name].rows, ()) if feature.table_name in tables} or tables
        numerical = {"numerical.bin"} if TRAININGS[name].rows != "shapes" else set()
        numerical |= {"weight.bin"} if TRAININGS[name].rows == "weighted" else set()
        weights = {weights_file(feature.name) for feature in LISTS.get(TRAININGS[name].rows, ()) if feature.weights and feature.name in own}
        assert set(files) == {f"{feature}.bin" for feature in own} | {"label.bin"} | numerical | weights
        assert len(files) == len(set(files)), "a file is open twice"
    if name == "tables sgd":
        assert all(len(files) < 2 + 7 for files in outcome.files)


def test_plans_of_these_trainings_have_slices_and_replicas(trained):
    plans = {name: trained(2)[name].plan for name in CHOSEN[2] if TRAININGS[name].features is None and TRAININGS[name].rows not in LISTS}
    for name, plan in plans.items():
        where = name.split()[0]
        widths = {piece["columns"][1] - piece["columns"][0] for worker in plan["workers"] for piece in worker["slices"]}
        assert widths - {1} == {"tables": {8}, "sliced": {4, 8}, "replicated": set(), "mixed": {4}}[where]  # 1: a linear part
        # the linear part's tables of one column are small enough to be replicated where some are
        linear = {"wide_and_deep", "fm", "--linear"} & set(TRAININGS[name].flags)
        wide = 7 if linear and where == "mixed" else 0
        assert len(plan["replicated"]) == {"tables": 0, "sliced": 0, "replicated": 7, "mixed": 2}[where] + wide


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_the_processors_as_threads(trained, workers):
    assert trained(workers).threads == [max(len(os.sched_getaffinity(0)) // workers, 1)] * workers


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_differing_dense_weights_are_reported_with_the_worker(trained, workers):
    for name in CHOSEN[workers]:
        for text in trained(workers)[name].diverged:
            assert text.startswith(f"the dense weights of worker {workers - 1} differ from worker 0's; nothing is saved")
