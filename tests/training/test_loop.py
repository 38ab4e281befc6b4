"""Tests of the training loop: its evaluations, its end and its messages."""

import itertools
import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.model.tiny_model import config
from tests.training.scripted_loop import Loop
from training.position import Position, evaluates_after, reason_finished
from training.report import NonFiniteLossError
from utils.signals import Stopped


def evaluation_steps(batches, *schedule):
    return {step for step in range(batches) if evaluates_after(step, batches, *schedule)}


@pytest.mark.parametrize(
    ("batches", "evals", "freq", "epoch", "after", "expected"),
    [
        (10, 1, None, 0, 0, {9}),
        (10, 2, None, 0, 0, {4, 9}),
        (10, 3, None, 0, 0, {3, 6, 9}),
        (10, 0, None, 0, 0, set()),
        (2, 4, None, 0, 0, {0, 1}),
        (1, 1, None, 0, 0, {0}),
        (10, 1, 4, 0, 0, {3, 7}),
        (10, 1, 4, 1, 0, {1, 5, 9}),  # steps 12, 16 and 20 of the run
        (10, 0, 30, 1, 0, set()),
        (10, 0, 30, 2, 0, {9}),
        (10, 2, None, 0, 1.0, {9}),
        (10, 2, None, 0, 1.1, set()),
        (10, 2, None, 1, 1.5, {4, 9}),
        (10, 2, None, 1, 1.6, {9}),
        (10, 1, 1, 0, 0.75, {7, 8, 9}),
    ],
)
def test_evaluation_steps(batches, evals, freq, epoch, after, expected):
    assert evaluation_steps(batches, evals, freq, epoch, after) == expected


@given(batches=st.integers(1, 300), evals=st.integers(1, 400))
def test_evaluations_are_evenly_spread_and_the_last_follows_the_last_step(batches, evals):
    steps = sorted(evaluation_steps(batches, evals, None, 0, 0))
    assert len(steps) == min(evals, batches)
    assert steps[-1] == batches - 1
    gaps = [b - a for a, b in zip([-1, *steps], steps, strict=False)]
    assert max(gaps) - min(gaps) <= 1


PLATEAU = ("--lr_schedule", "plateau", "--learning_rate", "0.5", "--warmup_steps", "3", "--early_stop_patience", "3")
SCORES = {2: 0.6, 4: 0.7, 5: 0.65, 7: 0.75, 9: 0.7, 10: 0.72}


@pytest.mark.parametrize("patience", [(), ("--early_stop_patience", "1"), ("--early_stop_patience", "2"), ("--auc_threshold", "0.75"), PLATEAU])
@pytest.mark.parametrize("signal_at", range(2, 11))
def test_resumed_run_equals_an_uninterrupted_run(tmp_path, signal_at, patience):
    flags = ("--epochs", "2", "--evals_per_epoch", "3", "--print_freq", "1", *patience)
    whole = Loop(tmp_path, *flags, auc=SCORES.get)
    whole.run()
    cut = Loop(tmp_path, *flags, auc=SCORES.get, signal_at=signal_at)
    try:
        cut.run()
        assert whole.training.position.step < signal_at
    except Stopped as stopped:
        assert stopped.code == 143 and cut.training.position.step == signal_at
        assert signal_at not in cut.evaluated  # no evaluation after a signal: a cluster's scheduler does not wait for one
        position = Position(**json.loads(json.dumps(asdict(cut.training.position))))
        if reason_finished(config(*flags), position, 5, "test") is None:
            rest = Loop(tmp_path, *flags, auc=SCORES.get, position=position)
            rest.run()
            cut.evaluated += rest.evaluated
            cut.training = rest.training
            cut.rates += rest.rates
    assert cut.evaluated == whole.evaluated
    assert cut.rates == whole.rates
    assert cut.training.position == whole.training.position
    assert reason_finished(config(*flags), cut.training.position, 5, "test") is not None


def test_an_evaluation_that_does_not_improve_reduces_the_learning_rate(tmp_path, capsys):
    flags = ("--epochs", "2", "--test_freq", "1", "--lr_schedule", "plateau", "--learning_rate", "1", "--warmup_steps", "0", "--print_freq", "1")
    scores = {1: 0.6, 2: 0.7, 3: 0.7, 4: 0.65, 5: 0.8, 6: 0.7, 7: 0.75, 8: 0.7, 9: 0.7, 10: 0.7}
    loop = Loop(tmp_path, *flags, "--plateau_min_lr", "0.0005", auc=scores.get)
    loop.run()
    assert loop.rates == pytest.approx([1, 1, 1, 0.1, 0.01, 0.01, 0.001, *[0.0005] * 3])
    assert "no better test AUC at step 3: learning rates reduced to 0.1 of the schedule's\n" in capsys.readouterr().out
    assert [line["data"]["learning_rate"] for line in loop.lines({"learning_rate"})] == loop.rates
    patient = Loop(tmp_path, *flags, "--plateau_patience", "2", "--plateau_factor", "0.5", "--early_stop_patience", "3", auc=scores.get)
    patient.run()
    assert patient.rates == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25]  # step 8 is the third evaluation in a row without a better AUC
    assert patient.evaluated[-1] == 8


def test_group_metric_selects_the_best_model_and_ends_training(tmp_path, capsys):
    flags = ("--best_metric", "mrr", "--epochs", "2", "--test_freq", "2")
    loop = Loop(tmp_path, *flags, "--early_stop_patience", "2", auc=lambda step: step / 20, mrr={2: None, 4: 0.8, 6: 0.7, 8: 0.75, 10: 0.9}.get)
    figures = loop.run()
    assert loop.evaluated == [2, 4, 6, 8] and "test MRR has not improved on 0.800000 for 2 evaluations" in capsys.readouterr().out
    assert (figures["best_mrr"], figures["best_epoch"], figures["mrr"], figures["groups_with_positive"]) == (0.8, 0.8, 0.75, 3)
    assert figures["best_auc"] == figures["auc"] == 0.4
    position = loop.training.position
    assert position.to_dict()["best_ranking"] == {"mrr": 0.8} and Position(**position.to_dict()) == position
    rest = Loop(tmp_path, *flags, mrr=lambda step: 0.8, position=position)
    assert rest.run()["best_mrr"] == 0.8 and rest.training.position.best_epoch == 0.8
    other = Loop(tmp_path, *flags, "--best_metric", "auc", auc=lambda step: 0.3, mrr=lambda step: 0.9, position=Position(**position.to_dict()))
    assert "best_mrr" not in other.run() and other.training.position.best_ranking == {"mrr": 0.8}


def test_position_without_group_metrics_has_no_entry_for_them(tmp_path):
    loop = Loop(tmp_path)
    loop.run()
    assert set(loop.training.position.to_dict()) == {
        *("step", "epoch", "batch", "samples", "best_auc", "evals_without_gain", "best_epoch", "last_auc", "evaluation_due"),
        *("loss_sum", "loss_count", "mean_loss", "ids_out_of_range", "skipped_steps", "skipped_in_a_row", "rate_reductions", "evals_on_plateau"),
        *("best_on_schedule", "clipped_steps"),
    }


@pytest.mark.parametrize("patience", [("--early_stop_patience", "2"), PLATEAU])
@pytest.mark.parametrize("steps", range(1, 10))
def test_run_that_max_steps_cuts_goes_on_as_an_unbroken_one(tmp_path, steps, patience):
    flags = ("--epochs", "2", "--test_freq", "2", "--print_freq", "1", *patience)
    scores = {2: 0.6, 4: 0.7, 6: 0.65, 8: 0.75, 10: 0.7} | dict.fromkeys(range(1, 10, 2), 0.95)  # those beside the schedule are the best
    whole = Loop(tmp_path, *flags, auc=scores.get)
    whole.run()
    cut = Loop(tmp_path, *flags, "--max_steps", str(steps), auc=scores.get)
    cut.run()
    position = Position.saved(json.loads(json.dumps(cut.training.position.to_dict())))
    assert (position.best_auc == 0.95) == (steps % 2 == 1)
    if reason_finished(config(*flags), position, 5, "test") is None:
        rest = Loop(tmp_path, *flags, auc=scores.get, position=position)
        rest.run()
        cut.rates, position = cut.rates + rest.rates, rest.training.position
    assert cut.rates == whole.rates and position.step == whole.training.position.step
    for name in ("rate_reductions", "evals_on_plateau", "evals_without_gain", "best_on_schedule"):
        assert getattr(position, name) == getattr(whole.training.position, name), name


def test_position_of_an_older_checkpoint_counts_its_best_as_scheduled():
    older = {"best_auc": 0.7, "best_ranking": {"mrr": 0.4}, "step": 3}
    assert Position.saved(older).best_on_schedule == {"auc": 0.7, "mrr": 0.4}
    assert Position.saved({"best_auc": None}).best_on_schedule == {}
    assert Position.saved(older | {"best_on_schedule": {}}).best_on_schedule == {}


def test_evaluation_at_max_steps_counts_for_the_best_model_but_not_for_patience(tmp_path):
    loop = Loop(tmp_path, "--evals_per_epoch", "1", "--max_steps", "3", "--early_stop_patience", "1", auc=lambda step: 0.6)
    loop.run()
    assert loop.evaluated == [3] and loop.training.position.evals_without_gain == 0 and loop.training.position.best_auc == 0.6
    loop = Loop(tmp_path, "--max_steps", "3", "--early_stop_patience", "1", auc=lambda step: None)
    loop.run()
    assert loop.training.position.evals_without_gain == 0


def test_every_epoch_is_trained_evaluated_and_counted(tmp_path):
    loop = Loop(tmp_path, "--epochs", "3", losses=lambda step: float(step))
    figures = loop.run()
    assert loop.steps == list(range(15))
    assert loop.rates == [0.0, 0.5, *[1.0] * 13]
    assert loop.epochs == [0, 1, 2]
    assert loop.evaluated == loop.checked == [5, 10, 15]
    assert figures["steps"] == 15 and figures["samples"] == 3 * 19
    assert figures["auc"] == 0.6 and figures["validation_loss"] == 0.4
    assert figures["train_loss"] == pytest.approx(7)  # the mean since the last report, here of the whole run
    assert {"throughput", "mean_step_time_ms"} <= figures.keys()


@pytest.mark.parametrize(
    ("limit", "epochs", "evaluated"), [(3, [0], [3]), (5, [0], [5]), (7, [0, 1], [5, 7]), (10, [0, 1], [5, 10]), (99, [0, 1], [5, 10])]
)
def test_max_steps_ends_the_run_and_the_last_model_is_evaluated_once(tmp_path, limit, epochs, evaluated):
    loop = Loop(tmp_path, "--epochs", "2", "--max_steps", str(limit))
    figures = loop.run()
    assert figures["steps"] == len(loop.steps) == min(limit, 10)
    assert (loop.epochs, loop.evaluated) == (epochs, evaluated)


def test_reaching_the_auc_threshold_ends_every_loop(tmp_path, capsys):
    loop = Loop(tmp_path, "--epochs", "4", "--test_freq", "3", "--auc_threshold", "0.75", auc=lambda step: 0.6 + step / 40)
    figures = loop.run()
    assert loop.evaluated == [3, 6]  # 0.675, 0.75
    assert loop.steps == list(range(6)) and loop.epochs == [0, 1]
    assert figures["auc"] == figures["best_auc"] == 0.75
    assert "reached --auc_threshold 0.75 at step 6" in capsys.readouterr().out


def test_auc_threshold_at_the_end_of_an_epoch_starts_no_new_epoch(tmp_path):
    loop = Loop(tmp_path, "--epochs", "4", "--auc_threshold", "0.5")
    loop.run()
    assert (loop.epochs, loop.evaluated) == ([0], [5])


def test_final_figures_are_of_the_last_model_and_the_best_auc_is_kept(tmp_path):
    loop = Loop(tmp_path, "--test_freq", "2", auc=lambda step: 0.9 - step / 10)
    figures = loop.run()
    assert loop.evaluated == [2, 4, 5]
    assert figures["auc"] == pytest.approx(0.4) and figures["best_auc"] == pytest.approx(0.7)


def test_evaluation_throughput_covers_all_evaluations(tmp_path, monkeypatch):
    ticks = itertools.accumulate(itertools.cycle([100.0, 0.25, 100.0, 0.75]))  # two evaluations of 0.25 and 0.75 s, 100 s apart
    monkeypatch.setattr("training.evaluations.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    loop = Loop(tmp_path, "--test_freq", "2", batches=4)
    assert loop.run()["average_test_throughput"] == pytest.approx(20 / 1.0) and loop.evaluated == [2, 4]
    loop = Loop(tmp_path, evaluate=False)
    assert loop.run()["average_test_throughput"] is None


def test_test_after_delays_the_first_evaluation(tmp_path):
    loop = Loop(tmp_path, "--epochs", "2", "--test_freq", "2", "--test_after", "1.5")
    loop.run()
    assert loop.evaluated == [8, 10]


def test_without_evaluations_there_are_no_figures_of_them(tmp_path):
    for i, (flags, evaluate) in enumerate([(("--evals_per_epoch", "0"), True), ((), False)]):
        folder = tmp_path / str(i)
        folder.mkdir()
        loop = Loop(folder, *flags, evaluate=evaluate)
        figures = loop.run()
        assert loop.evaluated == []
        assert figures["auc"] is None and figures["validation_loss"] is None and figures["best_auc"] is None


def test_undefined_auc_does_not_end_training(tmp_path):
    loop = Loop(tmp_path, "--auc_threshold", "0.5", "--epochs", "2", auc=lambda step: None)
    figures = loop.run()
    assert figures["auc"] is None and figures["best_auc"] is None and figures["steps"] == 10


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("bad", [0, 3, 8, 9])
@pytest.mark.parametrize("print_freq", [1, 4, 100])
def test_a_non_finite_loss_ends_the_run_and_names_the_step(tmp_path, bad, value, print_freq):
    loop = Loop(tmp_path, "--epochs", "2", "--print_freq", str(print_freq), losses=lambda step: value if step == bad else 0.5)
    with pytest.raises(NonFiniteLossError, match=f"step {bad}: the loss is {value}; nothing is saved"):
        loop.run()
    assert len(loop.steps) <= bad + 2  # noticed at the next step at the latest
    assert all(step <= bad for step in loop.evaluated)


def test_gradients_that_are_not_finite_end_the_run_and_name_the_step(tmp_path):
    loop = Loop(tmp_path, "--epochs", "2", finite=lambda step: float(step != 3))
    with pytest.raises(NonFiniteLossError, match="step 3: the gradients are not finite; nothing is saved"):
        loop.run()
    assert len(loop.steps) <= 5


def test_a_model_whose_scores_are_not_finite_ends_the_run(tmp_path):
    loop = Loop(tmp_path, "--max_steps", "1", log_loss=math.nan)  # the loss of step 0 is finite: it is that of the weights before the step
    with pytest.raises(NonFiniteLossError, match="step 0"):
        loop.run()


def test_repeatedly_skipped_steps_end_the_run(tmp_path):
    loop = Loop(tmp_path, "--epochs", "30", losses=lambda step: math.nan, scaled=True)
    with pytest.raises(
        NonFiniteLossError, match=r"step 29: the loss is nan, and 30 steps in a row were skipped for this reason; nothing is saved. Try --loss_scale"
    ):
        loop.run()
    loop = Loop(tmp_path, finite=lambda step: 0.0, scaled=True)
    with pytest.raises(NonFiniteLossError, match="step 4: the gradients are not finite, and 5 steps in a row were skipped"):
        loop.run()


def test_skipped_steps_are_counted_and_training_goes_on(tmp_path):
    loop = Loop(tmp_path, "--print_freq", "1", losses=lambda step: math.inf if step == 1 else 0.5, finite=lambda step: float(step != 3), scaled=True)
    figures = loop.run()
    assert figures["skipped_steps"] == 2 and figures["train_loss"] == 0.5 and len(loop.steps) == 5


def test_the_log_has_a_line_each_print_freq_and_at_the_end(tmp_path):
    loop = Loop(tmp_path, "--epochs", "2", "--print_freq", "4", losses=lambda step: float(step))
    loop.run()
    lines = loop.lines({"loss", "samples_per_s", "step_time_ms", "learning_rate"})
    assert [line["step"] for line in lines] == [[0, 4], [1, 8], [1, 10]]
    assert [line["data"]["loss"] for line in lines] == [1.5, 5.5, 8.5]
    assert [line["step"] for line in loop.lines({"auc", "test_loss", "samples"})] == [[0, 5], [1, 10]]


@pytest.mark.parametrize(("start", "stopped"), [(0, 10), (3, 13), (12, 15), (None, None), (15, None)])
def test_a_profile_of_ten_steps_is_taken_and_ends_with_the_run(tmp_path, monkeypatch, capsys, start, stopped):
    loop = Loop(tmp_path, "--epochs", "3", *(() if start is None else ("--profiler_start_step", str(start))))
    calls = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: calls.append(("start", folder, loop.training.position.step)))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: calls.append(("stop", loop.training.position.step)))
    loop.run()
    assert calls == ([("start", "profile", start), ("stop", stopped)] if stopped else [])
    assert ("no profile, training ended at step 15" in capsys.readouterr().err) == (start == 15)


def logged(loop):
    """Return the training lines' loss and counts by step."""
    return {line["step"][1]: {name: line["data"].get(name) for name in ("loss", "samples", "skipped_steps")} for line in loop.lines({"loss"})}


def odd_loss(step):
    """Return a loss whose sums differ in the last bits with the order of the additions; every sixth is not finite."""
    return math.inf if step % 6 == 1 else 1 / (step + 3) + 1e-7 * step


@pytest.mark.parametrize("freq", [1, 3, 4, 100])
@pytest.mark.parametrize("signal_at", range(2, 11))
def test_lines_after_a_resume_are_those_of_an_unbroken_run(tmp_path, signal_at, freq):
    flags = ("--epochs", "3", "--print_freq", str(freq))
    whole = Loop(tmp_path, *flags, losses=odd_loss, scaled=True)
    figures = whole.run()
    expected = logged(whole)
    cut = Loop(tmp_path, *flags, losses=odd_loss, scaled=True, signal_at=signal_at, saves=True)
    with pytest.raises(Stopped):
        cut.run()
    lines = logged(cut)
    rest = Loop(tmp_path, *flags, losses=odd_loss, scaled=True, position=Position(**json.loads(cut.saved)))
    ended = rest.run()
    assert lines | logged(rest) == expected and not lines.keys() & logged(rest).keys()
    assert ended["train_loss"] == figures["train_loss"] and ended["skipped_steps"] == figures["skipped_steps"] == 3
    assert rest.training.position == whole.training.position


def test_a_longer_run_has_the_lines_that_it_would_have_had_unbroken(tmp_path):
    whole = Loop(tmp_path, "--print_freq", "4", "--epochs", "2", losses=odd_loss, scaled=True)
    whole.run()
    expected = logged(whole)
    short = Loop(tmp_path, "--print_freq", "4", "--epochs", "2", "--max_steps", "6", losses=odd_loss, scaled=True)
    short.run()
    lines = logged(short)
    rest = Loop(tmp_path, "--print_freq", "4", "--epochs", "2", losses=odd_loss, scaled=True, position=short.training.position)
    rest.run()
    assert lines.keys() == {4, 6} and logged(rest) | {4: lines[4]} == expected


def test_another_print_freq_after_a_resume_averages_since_the_last_line(tmp_path):
    cut = Loop(tmp_path, "--print_freq", "3", losses=float, signal_at=3, saves=True)
    with pytest.raises(Stopped):
        cut.run()
    rest = Loop(tmp_path, "--print_freq", "5", losses=float, position=Position(**json.loads(cut.saved)))
    rest.run()
    assert [line["data"]["loss"] for line in rest.lines({"loss"})] == [(3 + 4) / 2]  # steps 0 to 2 are in the line of step 3


def test_skipped_steps_in_a_row_are_counted_over_a_resume(tmp_path):
    losses = lambda step: math.nan if step >= 5 else 0.5  # noqa: E731
    cut = Loop(tmp_path, "--epochs", "30", losses=losses, scaled=True, signal_at=24, saves=True)
    with pytest.raises(Stopped):
        cut.run()
    assert cut.training.position.skipped_in_a_row == 20
    rest = Loop(tmp_path, "--epochs", "30", losses=losses, scaled=True, position=Position(**json.loads(cut.saved)))
    with pytest.raises(NonFiniteLossError, match=r"step 34: the loss is nan, and 30 steps in a row were skipped"):
        rest.run()


def test_a_resumed_run_whose_steps_are_all_skipped_ends_as_the_unbroken_run(tmp_path):
    position = Position(step=3, epoch=0, batch=3, samples=12)
    rest = Loop(tmp_path, losses=lambda step: math.nan if step >= 3 else 0.5, scaled=True, position=position)
    assert rest.run()["skipped_steps"] == 2 and rest.training.position.step == 5


def test_position_of_an_older_checkpoint_begins_a_new_mean(tmp_path):
    older = {"step": 5, "epoch": 1, "batch": 0, "samples": 19, "best_auc": 0.6, "evals_without_gain": 0}
    rest = Loop(tmp_path, "--epochs", "2", "--print_freq", "2", losses=float, position=Position(**older))
    rest.run()
    assert {step: line["loss"] for step, line in logged(rest).items()} == {6: 5.0, 8: 6.5, 10: 8.5}


def test_lines_tell_where_the_time_went_and_the_memory(tmp_path):
    loop = Loop(tmp_path, "--print_freq", "2")
    loop.run()
    lines = loop.lines({"loss"})
    for line in lines:
        assert line["data"]["input_ms"] >= 0 and line["data"]["saving_ms"] == 0 and line["data"]["memory_gib"] > 0.05
        assert "exchange_ms" not in line["data"] and not any("norm" in name for name in line["data"])
    assert [line["data"]["samples"] for line in lines] == [8, 16, 19]
    tables = [line for line in loop.lines({"touched"}) if line["step"] == "TABLES"]
    assert [line["data"]["step"] for line in tables] == [5, 5]  # after the evaluation, and at the end
    assert len(tables[-1]["data"]["memory_gib"]) == 1 and "memory_gib" not in tables[0]["data"]
