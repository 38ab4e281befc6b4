"""What a run takes over from its checkpoint."""

import json

import pytest

from dataloading.feature_spec import FeatureSpec
from run.inherit import changes, inherit, metadata
from utils.config import parse
from utils.errors import UserError

SPEC = FeatureSpec((), (), "label", {})
SMALL = ("--embedding_dim", "8", "--bottom_mlp_dims", "16,8", "--top_mlp_dims", "4,1")


def configure(*flags):
    return parse(["--dataset_path", "data", *flags], "")


def manifest(*flags):
    return json.loads(json.dumps(metadata(configure(*flags), SPEC)))  # as it comes back from the file


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


def test_training_on_takes_the_architecture_only():
    config = inherit(
        configure("--mode", "train"), manifest(*SMALL, "--amp", "--learning_rate", "3", "--out_of_range", "hash", "--max_table_size", "9")
    )
    assert config.model.embedding_dim == 8
    assert (config.data.out_of_range, config.data.max_table_size) == ("hash", 9)
    assert (config.device.amp, config.optimizer.learning_rate) == (False, 24)


def test_a_run_that_goes_on_keeps_the_slices_of_the_gradients():
    saved = manifest("--gradient_slices", "4")
    assert inherit(configure(), saved, goes_on=True).device.gradient_slices == 4
    assert inherit(configure("--gradient_slices", "2"), saved, goes_on=True).device.gradient_slices == 2
    assert inherit(configure(), saved).device.gradient_slices is None  # another run with its weights
    assert inherit(configure("--mode", "eval"), saved).device.gradient_slices is None


def test_a_run_that_goes_on_keeps_its_form_of_rmsprop():
    given = ("--optimizer", "rmsprop", "--epsilon_outside_root")
    assert inherit(configure("--optimizer", "rmsprop"), manifest(*given), goes_on=True).optimizer.epsilon_outside_root
    before = manifest("--optimizer", "rmsprop")
    del before["config"]["epsilon_outside_root"]  # of a checkpoint that was written before there was the flag
    assert inherit(configure(*given), before, goes_on=True).optimizer.epsilon_outside_root  # given: it holds
    default = parse(["--dataset_path", "data", "--optimizer", "rmsprop"], "", defaults={"epsilon_outside_root": True})
    assert default.optimizer.epsilon_outside_root
    went_on = inherit(default, before, goes_on=True)
    assert not went_on.optimizer.epsilon_outside_root
    assert changes(went_on, default, before) == ["taken over from the checkpoint: epsilon_outside_root False, gradient_slices 8"]
    kept = inherit(configure(*given), before, goes_on=True)
    assert "--epsilon_outside_root True from here on; the checkpoint's run had False" in changes(kept, configure(*given), before)


@pytest.mark.parametrize("unrecorded", [{}, {"gradient_slices": None}])
def test_a_checkpoint_that_does_not_know_its_slices_was_made_with_eight(unrecorded):
    saved = manifest()
    del saved["config"]["gradient_slices"]
    saved["config"] |= unrecorded
    assert inherit(configure(), saved, goes_on=True).device.gradient_slices == 8
    assert inherit(configure("--gradient_slices", "1"), saved, goes_on=True).device.gradient_slices == 1


@pytest.mark.parametrize("value", ["x", 0, -8, 2.5, True, [8]])
def test_slices_that_cannot_be_are_an_error(value):
    saved = manifest()
    saved["config"]["gradient_slices"] = value
    with pytest.raises(UserError, match="gradient_slices"):
        inherit(configure(), saved, goes_on=True)


def test_repeating_the_models_flags_is_fine():
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
    with pytest.raises(UserError, match="manifest holds options that cannot be"):
        inherit(configure("--mode", "eval"), {"config": {"embedding_dim": 0}})


@pytest.mark.parametrize("config", [[], None, 3])
def test_a_manifest_whose_configuration_is_no_mapping_is_an_error(config):
    with pytest.raises(UserError, match="damaged"):
        inherit(configure("--mode", "eval"), {"config": config})


def test_a_manifest_without_configuration_changes_nothing():
    config = configure("--mode", "eval")
    assert inherit(config, {}) == config
