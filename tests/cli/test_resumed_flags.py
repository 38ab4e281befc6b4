"""Tests of every flag's value in a run that restores a checkpoint: the first run changes all flags, the resumed one gives none, or one other value.

Every option is tested as soon as it exists. A flag that a resumed run takes over from its checkpoint, as flags of training are, needs no line here.
"""

import dataclasses
import typing

import pytest
from runs import child
from test_ranking_metrics import write_grouped

from run.prepare import prepared
from utils.checkpoint.reading import Checkpoint
from utils.config.config import GROUPS
from utils.config.flags import Parser, add_flags
from utils.config.options import EVAL, TRAIN, ModelConfig
from utils.dialects.command_line import parse
from utils.distributed import meet
from utils.errors import UserError

OPTIONS = {field.name: field for group in GROUPS for field in dataclasses.fields(group)}
KINDS = {name: kind for group in GROUPS for name, kind in typing.get_type_hints(group).items() if name in OPTIONS}
IN_TRAINING = [name for name, field in OPTIONS.items() if not field.metadata["modes"] or TRAIN in field.metadata["modes"]]

# Flags that every start sets for itself: paths, the machine, logs, how the run begins and where it stops. The value is the first run's; None where
# the fixture `first` sets the flag anyway, or another flag of the first run excludes it.
OF_A_START = {
    "mode": None,
    "log_path": None,
    "args_path": "args.json",
    "print_freq": "7",
    "log_steps": "true",
    "tensorboard_path": None,
    "log_norms": "true",
    "verbose": "true",
    "profiler_start_step": "500",
    "profiled_rank": None,
    "dataset_path": None,
    "feature_spec": "other.yaml",
    "dataset_type": None,
    "synthetic_dataset_dir": None,
    "train_data_pattern": None,
    "eval_data_pattern": None,
    "embedding_sizes_file": None,
    "embedding_zeros_initializer": "true",
    "embedding_initializer": None,
    "embedding_initializer_scale": None,
    "bias_initializer": None,
    "max_steps": "2",
    "save_checkpoint_path": None,
    "restore_checkpoint_path": None,
    "restore_fallback": "true",
    "allow_growth": None,
    "allow_other_transforms": "true",
    "resume": None,
    "overwrite_checkpoints": "true",
    "benchmark_warmup_steps": "1",
    "cpu": "true",
    "run_eagerly": None,
    "affinity": "single",
    "inter_op_parallelism": "2",
    "intra_op_parallelism": "2",
    "dist_strategy": "basic",
    "column_slice_threshold": "1000000",
    "data_parallel_threshold": "10",
    "worker_memory_gb": "3",
    "cpu_offloading_threshold_gb": "2",
    "table_memory_gb": "1",
}
# Two values for flags where `values_of` cannot derive them from the option. Neither is the default, and no other flag forbids them.
VALUES = {
    "dense_update_rows": ("100000", "200000"),
    "clip_norm": ("0.5", "2"),
    "embedding_dim": ("4", "6"),
    "bottom_mlp_dims": ("12,5", "12,128"),
    "top_mlp_dims": ("9,1", "7,1"),
    "interaction": ("cross", "cat"),
    "structure": ("parallel", "stacked"),
    "stream1_dims": ("8", "6,4"),
    "stream2_dims": ("8", "6,4"),
    "gate1_features": ("cat_0", "cat_0,cat_1"),
    "gate2_features": ("cat_0", "cat_0,cat_1"),
    "gate_dims": ("8", "6,4"),
    "num_heads": ("2", "4"),
    "batch_norm_epsilon": ("0.001", "0.002"),
    "logit_shift": ("-1", "-2"),
    "batch_norm_momentum": ("0.8", "0.7"),
    "out_of_range": ("hash", "clip"),
    "max_table_size": ("400", "401"),
    "batch_size": ("64", "128"),
    "synthetic_dataset_cardinalities": ("30,20", "30,21"),
    "synthetic_dataset_hotness": ("2", "3"),
    "optimizer": ("adam", "adagrad"),
    "embedding_optimizer": ("rmsprop", "ftrl"),
    "learning_rate": ("0.01", "0.02"),
    "decay_end_lr": ("0.001", "0.002"),
    "ftrl_power": ("-0.25", "-0.75"),
    "epochs": ("3", "4"),
    "warmup_steps": ("3", "4"),
    "test_freq": ("40", "50"),
    "auc_threshold": ("0.999", "0.998"),
    "ranking_metrics": ("mrr", "map@3"),
    "best_metric": ("mrr", "map@3"),
    "amp_dtype": ("bfloat16", "float16"),
    "loss_scale": ("8", "dynamic"),
    "gradient_slices": ("2", "4"),
    "xla": ("true", "all"),
}
# Flags that a resumed run must not change: with another value, the weights would be those of another model, or the position one in other data.
STARTS = ("embedding_zeros_initializer", "embedding_initializer", "embedding_initializer_scale", "bias_initializer")
OF_THE_MODEL = {field.name for field in dataclasses.fields(ModelConfig)} - {"embedding_trainable", "batch_norm_momentum", "logit_shift", *STARTS} | {
    "max_table_size"
}
OF_THE_POSITION = {
    "seed",
    "batch_size",
    "shuffle_batch_order",
    "shuffle_window",
    "steps_per_epoch",
    "optimizer",
    "embedding_optimizer",
    "linear_optimizer",
    "negatives",
    "embedding_trainable",
    "valid_fraction",  # the numbers of rows that follow from it are compared
    "dataset_subset",
}
OF_A_SCORE = {"logit_shift", "out_of_range", "combiner", "amp", "amp_dtype", "xla", "valid_batch_size", "table_storage", "table_storage_above"}
INSTEAD = [  # if the first flag is given, the second is not taken over from the checkpoint
    ("test_freq", "evals_per_epoch"),
    ("evals_per_epoch", "test_freq"),
    ("checkpoint_every_minutes", "checkpoint_every_steps"),
    ("checkpoint_every_steps", "checkpoint_every_minutes"),
    ("amp", "amp_dtype"),
]
TAKEN = [name for name in IN_TRAINING if name not in OF_A_START]


def values_of(name):
    """Return two values of a flag, as words; the first is not its default."""
    default, choices, kind = OPTIONS[name].default, OPTIONS[name].metadata["choices"], KINDS[name]
    if name in VALUES:
        return VALUES[name]
    if isinstance(default, bool):
        return (str(not default).lower(), str(default).lower())
    if choices:
        return (*(choice for choice in choices if choice != default), default)[:2]
    if int in (kind, *typing.get_args(kind)):
        return str((default or 1) + 1), str((default or 1) + 2)
    if float in (kind, *typing.get_args(kind)):
        return str((default or 1) / 2), str((default or 1) / 4)
    raise AssertionError(f"--{name} is new: add two values of it to VALUES in {__file__}, or add it to OF_A_START if every start sets it itself")


def valued(name, word):
    parser = Parser()
    add_flags(parser, GROUPS)
    return vars(parser.parse_strictly([f"--{name}", word]))[name]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = write_grouped(tmp_path_factory.mktemp("data") / "dataset", ("train", "test"))
    (folder / "other.yaml").write_text((folder / "feature_spec.yaml").read_text())
    return folder


@pytest.fixture(scope="module")
def first(dataset, tmp_path_factory):
    """Train with every flag changed; return the folder of checkpoints."""
    folder = tmp_path_factory.mktemp("first")
    words = {name: word for name, word in OF_A_START.items() if word is not None} | {name: values_of(name)[0] for name in TAKEN}
    flags = [word for name, value in words.items() for word in (f"--{name}", value)]
    result = child(folder, "--dataset_path", dataset, "--save_checkpoint_path", folder / "c", *flags)
    assert result.code == 0, f"{result.err}\na new flag that conflicts with the others needs other values in VALUES or in OF_A_START"
    return folder / "c"


def config_of(dataset, first, *flags):
    """Return the configuration of a run that restores the checkpoint with the given flags."""
    config = parse(["--dataset_path", str(dataset), "--restore_checkpoint_path", str(first), "--log_path", "", *flags], "")
    with prepared(config, meet(), "dlrm.py") as run:
        return run.config.flat()


@pytest.fixture(scope="module")
def resumed(dataset, first):
    return config_of(dataset, first)


@pytest.mark.parametrize("name", TAKEN)
def test_resumed_run_inherits_the_flag(name, first, resumed):
    expected = valued(name, values_of(name)[0])
    assert expected != OPTIONS[name].default
    assert resumed[name] == expected, (
        f"--{name} is {resumed[name]} in a resumed run whose first start had {expected}: set resume=INHERIT in its option, or add it to OF_A_START "
        f"in {__file__} if every start sets it itself"
    )


@pytest.mark.parametrize("name", OF_A_START)
def test_resumed_run_does_not_inherit_the_flag(name, dataset, first, resumed):
    own = {"dataset_path": str(dataset), "restore_checkpoint_path": str(first), "log_path": ""}
    assert resumed[name] == own.get(name, OPTIONS[name].default)
    if OF_A_START[name] is not None:
        assert Checkpoint(first).manifest["config"][name] == valued(name, OF_A_START[name]) != resumed[name]


@pytest.mark.parametrize("name", TAKEN)
def test_flag_given_again_overrides_or_is_rejected(name, dataset, first, capfd):
    word = values_of(name)[1]
    if name in OF_THE_MODEL | OF_THE_POSITION:
        with pytest.raises(UserError) as raised:
            config_of(dataset, first, f"--{name}", word)
        if name in ("valid_fraction", "dataset_subset"):
            assert "its run had train_samples" in str(raised.value)
        else:
            message = f"--{name} {word}: the checkpoint's model has" if name in OF_THE_MODEL else f"its run had {name} "
            assert message.replace("true", "True").replace("false", "False") in str(raised.value)
        return
    value, before = valued(name, word), valued(name, values_of(name)[0])
    assert config_of(dataset, first, f"--{name}", word)[name] == value != before
    assert f"--{name} {shown(value)} from here on; the checkpoint's run had {shown(before)}" in capfd.readouterr().out


def shown(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("given", "instead"), INSTEAD)
def test_alternative_flag_replaces_the_inherited_one(given, instead, dataset, first, resumed):
    assert resumed[instead] != OPTIONS[instead].default
    assert config_of(dataset, first, f"--{given}", values_of(given)[0])[instead] == OPTIONS[instead].default


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(("--mode", EVAL), OF_THE_MODEL | OF_A_SCORE), (("--resume", "weights"), OF_THE_MODEL | {"logit_shift", "out_of_range", "combiner"})],
    ids=["eval", "weights"],
)
def test_eval_and_resume_weights_inherit_only_flags_of_the_model_and_scores(flags, expected, dataset, first, resumed):
    found = config_of(dataset, first, *flags)
    alone = parse(["--dataset_path", str(dataset), "--restore_checkpoint_path", str(first), "--log_path", "", *flags], "").flat()
    different = {name for name in OPTIONS if found[name] != alone[name]} - {"gradient_slices"}  # these follow from the batch size
    assert different == expected
    assert all(found[name] == resumed[name] for name in expected) and found["gradient_slices"] != resumed["gradient_slices"]
