"""Tests of the flags that a run takes over from its checkpoint."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from dataloading.feature_spec import FeatureSpec
from run.continuing import FINGERPRINT, check_continues, metadata, training_invariants
from run.inherit import changes, inherit
from utils.config.config import OPTIONS
from utils.config.option import INHERIT, MODEL, MUST_EQUAL, WITH_WEIGHTS
from utils.dialects.command_line import parse
from utils.errors import UserError

SPEC = FeatureSpec((), (), "label", {})
SMALL = ("--embedding_dim", "8", "--bottom_mlp_dims", "16,8", "--top_mlp_dims", "4,1")


def configure(*flags):
    return parse(["--dataset_path", "data", *flags], "")


def manifest(*flags):
    return json.loads(json.dumps(metadata(configure(*flags), SPEC)))  # as read back from the file


def test_evaluation_needs_no_model_flags():
    config = inherit(configure("--mode", "eval"), manifest(*SMALL, "--amp", "--valid_batch_size", "512", "--xla"))
    assert config.model == configure(*SMALL).model
    assert (config.device.amp, config.device.xla, config.data.valid_batch_size) == (True, True, 512)


def test_flags_that_were_given_win_over_precision_and_batch_size():
    saved = manifest("--amp", "--amp_dtype", "bfloat16", "--xla", "--valid_batch_size", "512")
    config = inherit(configure("--mode", "eval", "--noamp", "--noxla", "--valid_batch_size", "64"), saved)
    assert (config.device.amp, config.device.xla, config.data.valid_batch_size) == (False, False, 64)


def test_eager_evaluation_of_a_compiled_model():
    assert inherit(configure("--mode", "eval", "--run_eagerly"), manifest("--xla")).device.xla is False


def test_new_run_inherits_only_the_architecture():
    config = inherit(
        configure("--mode", "train"), manifest(*SMALL, "--amp", "--learning_rate", "3", "--out_of_range", "hash", "--max_table_size", "9")
    )
    assert config.model.embedding_dim == 8
    assert (config.data.out_of_range, config.data.max_table_size) == ("hash", 9)
    assert (config.device.amp, config.schedule.learning_rate) == (False, 24)


def test_resumed_run_keeps_its_gradient_slices():
    saved = manifest("--gradient_slices", "4")
    assert inherit(configure(), saved, goes_on=True).device.gradient_slices == 4
    assert inherit(configure("--gradient_slices", "2"), saved, goes_on=True).device.gradient_slices == 2
    assert inherit(configure(), saved).device.gradient_slices is None  # another run that starts from its weights
    assert inherit(configure("--mode", "eval"), saved).device.gradient_slices is None


def test_resumed_run_keeps_its_form_of_rmsprop():
    given = ("--optimizer", "rmsprop", "--epsilon_outside_root")
    assert inherit(configure("--optimizer", "rmsprop"), manifest(*given), goes_on=True).optimizer.epsilon_outside_root
    before = manifest("--optimizer", "rmsprop")
    del before["config"]["epsilon_outside_root"]  # as in a checkpoint written before the flag existed
    assert inherit(configure(*given), before, goes_on=True).optimizer.epsilon_outside_root  # a flag that is given holds
    default = parse(["--dataset_path", "data", "--optimizer", "rmsprop"], "", defaults={"epsilon_outside_root": True})
    assert default.optimizer.epsilon_outside_root
    went_on = inherit(default, before, goes_on=True)
    assert not went_on.optimizer.epsilon_outside_root
    assert changes(went_on, default, before) == ["taken over from the checkpoint: epsilon_outside_root False, gradient_slices 8"]
    kept = inherit(configure(*given), before, goes_on=True)
    assert "--epsilon_outside_root True from here on; the checkpoint's run had False" in changes(kept, configure(*given), before)


@pytest.mark.parametrize("unrecorded", [{}, {"gradient_slices": None}])
def test_unrecorded_gradient_slices_are_eight(unrecorded):
    saved = manifest()
    del saved["config"]["gradient_slices"]
    saved["config"] |= unrecorded
    assert inherit(configure(), saved, goes_on=True).device.gradient_slices == 8
    assert inherit(configure("--gradient_slices", "1"), saved, goes_on=True).device.gradient_slices == 1


@pytest.mark.parametrize("value", ["x", 0, -8, 2.5, True, [8]])
def test_invalid_gradient_slices_are_an_error(value):
    saved = manifest()
    saved["config"]["gradient_slices"] = value
    with pytest.raises(UserError, match="gradient_slices"):
        inherit(configure(), saved, goes_on=True)


def test_repeated_model_flags_are_accepted():
    saved = manifest(*SMALL)
    assert inherit(configure("--mode", "eval", *SMALL), saved).model == configure(*SMALL).model


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--embedding_dim", "16", "--bottom_mlp_dims", "16,16"], "--embedding_dim 16: the checkpoint's model has 8"),
        (["--top_mlp_dims", "5,1"], "--top_mlp_dims 5,1: the checkpoint's model has 4,1"),
        (["--max_table_size", "7"], "--max_table_size 7: the checkpoint's model has None"),
    ],
)
def test_flags_that_contradict_the_checkpoints_model_are_refused(flags, message):
    for mode in ("train", "eval"):
        with pytest.raises(UserError) as raised:
            inherit(configure("--mode", mode, *flags), manifest(*SMALL))
        assert message in str(raised.value)


def test_a_manifest_with_impossible_options_is_an_error():
    with pytest.raises(UserError, match="manifest are not valid together"):
        inherit(configure("--mode", "eval"), {"config": {"embedding_dim": 0}})


@pytest.mark.parametrize("config", [[], None, 3])
def test_a_manifest_whose_configuration_is_no_mapping_is_an_error(config):
    with pytest.raises(UserError, match="damaged"):
        inherit(configure("--mode", "eval"), {"config": config})


def test_a_manifest_without_configuration_changes_nothing():
    config = configure("--mode", "eval")
    assert inherit(config, {}) == config


def test_widths_of_each_feature_are_the_checkpoints_unless_it_grows():
    cross = ("--interaction", "cross", "--bottom_mlp_dims", "16,4", "--top_mlp_dims", "4,1")
    listed, one = manifest(*cross, "--embedding_dim", "2,3"), manifest(*cross, "--embedding_dim", "6")
    assert inherit(configure(), listed).model.embedding_dim == (2, 3)
    assert inherit(configure(*cross, "--allow_growth"), listed).model.embedding_dim == 128  # `tables.grown_widths` then sets the widths
    assert inherit(configure("--allow_growth"), one).model.embedding_dim == 6


def test_a_flag_that_the_checkpoint_does_not_know_is_no_change():
    saved = manifest()
    del saved["config"]["ftrl_l1"]
    given = configure("--ftrl_l1", "0.5", "--epochs", "2")
    assert changes(inherit(given, saved, goes_on=True), given, saved) == [
        "--epochs 2 from here on; the checkpoint's run had 1",
        "taken over from the checkpoint: gradient_slices 8",
    ]


POSITION = {"step": 3, "epoch": 0, "batch": 3, "samples": 30, "evals_without_gain": 0, "best_auc": None}
INVARIANTS = training_invariants(configure(), 1000, "rows")


def continues(wanted=INVARIANTS, **manifest):
    check_continues(SimpleNamespace(folder=Path("c"), manifest={"run": dict(INVARIANTS), "position": POSITION} | manifest), wanted)


@pytest.mark.parametrize("newer", [{}, {"last_auc": 0.5, "evaluation_due": True, "best_epoch": 1, "best_ranking": None}])
def test_run_resumes_from_a_complete_position(newer):
    continues(position=POSITION | newer)


@pytest.mark.parametrize(
    "manifest",
    [
        {"run": None},
        {"run": []},
        {"position": None},
        {"position": 3},
        *({"position": {name: value for name, value in POSITION.items() if name != left_out}} for left_out in POSITION),
        *({"position": POSITION | {name: 1.5}} for name in POSITION if name != "best_auc"),
        {"position": POSITION | {"unknown": 1}},
    ],
)
def test_incomplete_position_is_an_error(manifest):
    with pytest.raises(UserError, match="c: has no training position to resume from; use --resume weights to take its weights"):
        continues(**manifest)


@pytest.mark.parametrize("name", INVARIANTS)
def test_changed_invariant_is_an_error(name):
    wanted = INVARIANTS | {name: "another"}
    message = "trained on other rows" if name == FINGERPRINT else f"its run had {name} {INVARIANTS[name]}, this one has another"
    with pytest.raises(UserError, match=message):
        continues(wanted)


def test_older_checkpoint_has_one_optimizer_for_all_weights():
    saved = {name: value for name, value in INVARIANTS.items() if name != "embedding_optimizer"}
    continues(run=saved)
    with pytest.raises(UserError, match="its run had embedding_optimizer sgd"):
        continues(INVARIANTS | {"embedding_optimizer": "adam"}, run=saved)


def test_the_manifest_names_the_model_and_keeps_its_architecture():
    for flags, name in ((), "dlrm"), (("--interaction", "cross"), "dcnv2"), (("--interaction", "wide_and_deep"), "wide_and_deep"):
        found = manifest(*flags, "--embedding_dim", "8", "--bottom_mlp_dims", "16,8")["model"]
        assert found == found | {
            "name": name,
            "embedding_dim": 8,
            "bottom_mlp_dims": [16, 8],
            "top_mlp_dims": [1024, 1024, 512, 256, 1],
            "interaction": flags[1] if flags else "dot",
            "num_cross_layers": 3,
            "cross_layer_projection_dim": 512,
        }


ROWS = {
    "in every mode; a flag that contradicts is an error": lambda facts: facts["resume"] == MODEL,
    "in every mode, unless given": lambda facts: facts["resume"] == WITH_WEIGHTS,
    "in `train` that goes on; another value is an error": lambda facts: facts["resume"] == MUST_EQUAL,
    "in `train` that goes on, unless given": lambda facts: facts["resume"] == INHERIT,
    "in `eval`, `inference`, `predict`, `export`, unless given": lambda facts: facts["in_scores"],
}


@pytest.mark.parametrize("row", ROWS)
def test_documentation_lists_the_inherited_flags(row):
    names = ", ".join(f"`--{name}`" for name, option in OPTIONS.items() if ROWS[row](option.metadata))
    assert f"| {row} | {names} |" in (Path(__file__).parents[2] / "docs/training.md").read_text().splitlines()
