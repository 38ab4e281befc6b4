"""The options of dlrm.py: defaults, checks, files and warnings."""

import dataclasses

import pytest

from tests.helpers.commands import run
from tests.helpers.errors import refused
from utils.config.config import GROUPS, Config
from utils.config.data import DataConfig
from utils.config.device import DeviceConfig
from utils.config.flags import Parser, add_flags
from utils.config.ineffective import warnings as warnings_of
from utils.config.learning import OptimizerConfig, RegularisationConfig, ScheduleConfig
from utils.config.option import build
from utils.config.options import ModelConfig, TrainingConfig
from utils.config.per_feature import FeatureConfig
from utils.config.placement import PlacementConfig
from utils.config.ranking import RankingConfig
from utils.config.run import RunConfig
from utils.config.serving import ExportConfig
from utils.dialects.command_line import parse
from utils.dialects.pytorch_flags import LEGACY
from utils.errors import UserError

SYNTHETIC = ("--dataset_type", "synthetic")
FIELDS = [(group, field) for group in GROUPS for field in dataclasses.fields(group)]


def configure(*flags) -> Config:
    return parse([*SYNTHETIC, *flags], "")


def test_defaults():
    values = parse(["--dataset_path", "data"], "").flat()
    expected = {
        "optimizer": "sgd",
        "learning_rate": 24,
        "batch_size": 65536,
        "valid_batch_size": 65536,
        "warmup_steps": 8000,
        "decay_start_step": 48000,
        "decay_steps": 24000,
        "decay_power": 2,
        "epochs": 1,
        "embedding_dim": 128,
        "bottom_mlp_dims": (512, 256, 128),
        "top_mlp_dims": (1024, 1024, 512, 256, 1),
        "loss_scale": 65536,
        "mode": "train",
        "dataset_type": "tf_raw",
        "amp": False,
        "xla": False,
        "auc_thresholds": None,
    }
    assert {name: values[name] for name in expected} == expected


def test_flag_names_are_unique():
    names = [field.name for _, field in FIELDS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("group", "field"), FIELDS, ids=lambda value: getattr(value, "name", ""))
def test_every_option_has_help_and_one_default(group, field):
    assert len(field.metadata["help"]) > 10
    assert not field.metadata["help"].endswith(".")
    if field.name not in ("dataset_type", "bottom_mlp_dims", "log_path"):  # set by `configure`; derived from --embedding_dim, from --mode
        assert configure().flat()[field.name] == field.default
    parser = Parser(prog="test")
    add_flags(parser, [group])
    # the default that --help states parses to the default itself
    if not isinstance(field.default, (bool, type(None))) and field.default not in ("", ()):
        text = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
        assert getattr(parser.parse_strictly([f"--{field.name}={text}"]), field.name) == field.default


def test_help_texts_are_unique():
    texts = [field.metadata["help"] for _, field in FIELDS]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "-1"], "--seed -1: expected 0 or more"),
        (["--seed", str(2**63)], "below 2^63"),
        (["--print_freq", "0"], "--print_freq 0: expected at least 1 step"),
        (["--profiler_start_step", "-1"], "--profiler_start_step -1: expected 0 or more"),
        (["--batch_size", "0"], "--batch_size 0: expected at least 1"),
        (["--batch_size", str(2**31)], "--batch_size 2147483648: expected at least 1 and at most 2147483647"),
        (["--top_mlp_dims", "1" + 20 * "0" + ",1"], "expected one or more positive layer widths"),
        (["--valid_batch_size", "-4"], "--valid_batch_size -4: expected at least 1"),
        (["--synthetic_dataset_train_batches", "0"], "--synthetic_dataset_train_batches 0"),
        (["--synthetic_dataset_valid_batches", "0"], "--synthetic_dataset_valid_batches 0"),
        (["--max_table_size", "0"], "--max_table_size 0: expected at least 1 row"),
        (["--synthetic_dataset_cardinalities", ""], "--synthetic_dataset_cardinalities"),
        (["--synthetic_dataset_cardinalities", "3,0"], "--synthetic_dataset_cardinalities"),
        (["--synthetic_dataset_num_numerical_features", "-1"], "--synthetic_dataset_num_numerical_features -1: expected 0 or more"),
        (["--synthetic_dataset_use_feature_spec"], "--dataset_path is missing"),
        (["--dataset_type", "tf_raw"], "--dataset_path is missing: give the folder of a tf_raw dataset, or --dataset_type synthetic"),
        (["--embedding_dim", "0", "--bottom_mlp_dims", "0"], "--embedding_dim 0: expected at least 1 column"),
        (["--embedding_dim", "64", "--bottom_mlp_dims", "512,256,128"], "--bottom_mlp_dims 512,256,128: the last width must be --embedding_dim 64"),
        (["--bottom_mlp_dims", "512,64"], "must be --embedding_dim 128"),
        (["--bottom_mlp_dims", ""], "--bottom_mlp_dims : expected one or more positive layer widths"),
        (["--top_mlp_dims", "8,0,1"], "--top_mlp_dims 8,0,1: expected one or more positive layer widths"),
        (["--top_mlp_dims", "8,2"], "--top_mlp_dims 8,2: expected 1 as the last width"),
        (["--learning_rate", "0"], "--learning_rate 0.0: expected a positive number"),
        (["--learning_rate", "nan"], "--learning_rate nan: expected a positive number"),
        (["--learning_rate", "inf"], "--learning_rate inf: expected a positive number"),
        (["--beta1", "1"], "--beta1 1.0: expected at least 0 and below 1"),
        (["--beta2", "-0.5"], "--beta2 -0.5: expected at least 0 and below 1"),
        (["--warmup_steps", "-1"], "--warmup_steps -1: expected 0 or more steps"),
        (["--decay_steps", "-1"], "--decay_steps -1: expected 0 or more steps"),
        (["--decay_power", "0"], "--decay_power 0.0: expected a positive number"),
        (["--decay_start_step", "100"], "--warmup_steps 8000 is after --decay_start_step 100"),
        (["--optimizer", "lamb"], "'lamb' is not one of sgd, adam, adagrad, rowwise_adagrad, ftrl, rmsprop"),
        (["--mode", "tests"], "'tests' is not one of train, eval, inference, predict"),
        (["--epochs", "0"], "--epochs 0: expected at least 1"),
        (["--max_steps", "0"], "--max_steps 0: expected at least 1 step, or -1 for no limit"),
        (["--max_steps", "-2"], "--max_steps -2"),
        (["--evals_per_epoch", "-1"], "--evals_per_epoch -1: expected 0 or more"),
        (["--test_freq", "0"], "--test_freq 0: expected at least 1 step"),
        (["--test_after", "-0.5"], "--test_after -0.5: expected 0 or more epochs"),
        (["--auc_threshold", "1.5"], "--auc_threshold 1.5: expected above 0 and at most 1"),
        (["--auc_threshold", "nan"], "--auc_threshold nan"),
        (["--auc_thresholds", "1"], "--auc_thresholds 1: expected at least 2"),
        (["--benchmark_warmup_steps", "-1"], "--benchmark_warmup_steps -1: expected 0 or more steps"),
        (["--inference_benchmark_batch_sizes", "1,0"], "--inference_benchmark_batch_sizes 1,0: expected positive batch sizes"),
        (["--amp_dtype", "float8"], "'float8' is not one of float16, bfloat16"),
        (["--loss_scale", "0.5"], "--loss_scale 0.5: expected at least 1"),
        (["--inter_op_parallelism", "0"], "--inter_op_parallelism 0: expected 1 to 1024 threads"),
        (["--intra_op_parallelism", "0"], "--intra_op_parallelism 0: expected 1 to 1024 threads"),
        (["--intra_op_parallelism", "1099511627776"], "--intra_op_parallelism 1099511627776: expected 1 to 1024 threads"),
        (["--column_slice_threshold", "0"], "--column_slice_threshold 0: expected at least 1"),
        (["--plan_workers", "0"], "--plan_workers 0: expected at least 1"),
        (["--plan_workers", "1000000000"], "--plan_workers 1000000000: expected at least 1 and at most 4096"),
        (["--data_parallel_threshold", "-1"], "--data_parallel_threshold -1: expected 0 or more elements"),
        (["--worker_memory_gb", "0"], "--worker_memory_gb 0.0: expected a positive number"),
        (["--cpu_offloading_threshold_gb", "nan"], "--cpu_offloading_threshold_gb nan: expected a positive number"),
        (["--evals_per_epoch", "0", "--auc_threshold", "0.8"], "--auc_threshold needs evaluations, and --evals_per_epoch 0 turns them off"),
        (["--evals_per_epoch", "0", "--keep_best_checkpoint", "--save_checkpoint_path", "x"], "--keep_best_checkpoint needs evaluations"),
        (["--evals_per_epoch", "0", "--early_stop_patience", "2"], "--early_stop_patience needs evaluations"),
        (["--evals_per_epoch", "0", "--lr_schedule", "plateau"], "--lr_schedule plateau needs evaluations"),
        (["--plateau_factor", "1"], "--plateau_factor 1.0: expected above 0 and below 1"),
        (["--interaction", "cross", "--structure", "parallel", "--top_mlp_dims", "1"], "--structure parallel needs hidden layers"),
        (["--interaction", "cross", "--structure", "crossnet", "--top_mlp_dims", "8,1"], "--structure crossnet has no hidden layers"),
        (["--embedding_initializer_scale", "0"], "--embedding_initializer_scale 0.0: expected above 0"),
        (["--xla", "some"], "argument --xla: 'some' is not true, false or all"),
        (["--run_eagerly", "--xla", "all"], "--run_eagerly and --xla exclude each other"),
        (["--run_eagerly", "--xla"], "--run_eagerly and --xla exclude each other"),
        (["--bach_size", "3"], "unknown flag --bach_size; did you mean --batch_size?"),
        (["--interaction", "sum"], "argument --interaction: 'sum' is not one of dot, cross, cat"),
        (["--interaction", "cross", "--num_cross_layers", "0"], "--num_cross_layers 0: expected at least 1"),
        (
            ["--synthetic_dataset_hotness", "1,20"],
            "expected one number for all, or one for each of the 26 features",
        ),
        (["--synthetic_dataset_hotness", "0"], "--synthetic_dataset_hotness 0: expected one or more numbers from 1 to 65536"),
        (["--synthetic_dataset_hotness", ""], "--synthetic_dataset_hotness : expected one or more numbers"),
        (["--synthetic_dataset_hotness", "65537"], "--synthetic_dataset_hotness 65537: expected one or more numbers from 1 to 65536"),
        (["--synthetic_dataset_hotness", "2,4", "--synthetic_dataset_cardinalities", "2,3"], "feature 1 has 3 rows and hotness 4"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_invalid_value_is_a_one_line_error(flags, message):
    with refused(message):
        configure(*flags)


BAD = {
    RunConfig: {"seed": -1},
    DataConfig: {"batch_size": 0},
    FeatureConfig: {"combiner": "max"},
    ModelConfig: {"embedding_dim": 0},
    OptimizerConfig: {"beta1": 2.0},
    ScheduleConfig: {"learning_rate": 0.0},
    RegularisationConfig: {"dropout": 1.0},
    TrainingConfig: {"epochs": 0},
    RankingConfig: {"best_metric": "loss"},
    PlacementConfig: {"plan_workers": 0},
    DeviceConfig: {"loss_scale": 0.0},
    ExportConfig: {"max_batch_size": 0},
}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_constructor_checks_values(group):
    with pytest.raises(ValueError, match="--"):
        group(**BAD[group])
    with pytest.raises(UserError, match="--"):
        build(group, BAD[group])


def test_command_line_overrides_yaml_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("dataset_type: synthetic\nbatch_size: 512\namp: true\ntop_mlp_dims: [8, 1]\nlearning_rate: 1e-3\n")
    config = parse(["--config", str(path), "--batch_size", "1024", "--noamp"], "")
    assert (config.data.batch_size, config.device.amp) == (1024, False)
    assert (config.model.top_mlp_dims, config.schedule.learning_rate) == ((8, 1), 0.001)
    assert config.given == {"dataset_type", "batch_size", "amp", "top_mlp_dims", "learning_rate"}


def test_invalid_value_in_yaml_file_is_a_user_error(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("dataset_type: synthetic\nepochs: 0\n")
    with pytest.raises(UserError, match="--epochs 0: expected at least 1"):
        parse(["--config", str(path)], "")


@pytest.mark.parametrize(
    "flags",
    [
        ["--evals_per_epoch", "0"],
        ["--evals_per_epoch", "0", "--test_freq", "5", "--auc_threshold", "0.8"],
        ["--evals_per_epoch", "0", "--nokeep_best_checkpoint"],
    ],
    ids=" ".join,
)
def test_evals_per_epoch_0_is_accepted(flags):
    assert configure(*flags).training.test_freq in (None, 5)


def test_each_mode_has_its_own_default_log():
    logs = {mode: configure("--mode", mode).run.log_path for mode in ("train", "eval", "inference", "predict")}
    expected = {"train": "dlrm_tf_log.json"} | {mode: f"dlrm_tf_log_{mode}.json" for mode in ("eval", "inference", "predict")}
    assert logs == expected
    assert configure("--mode", "eval", "--log_path", "x.json").run.log_path == "x.json"
    assert configure("--mode", "eval", "--log_path", "").run.log_path == ""


def in_file(tmp_path, text, *flags):
    path = tmp_path / "run.yaml"
    path.write_text("dataset_type: synthetic\n" + text)
    return path, parse(["--config", str(path), *flags], "")


@pytest.mark.parametrize(
    ("text", "flags", "lines"),
    [
        ("beta1: 0.8\n", [], ["--config {path}: beta1 has no effect without --optimizer adam"]),
        ("beta1: 0.8\n", ["--optimizer", "adam"], []),
        ("beta1: 0.8\nbeta2: 0.8\n", [], ["--config {path}: beta1, beta2 have no effect without --optimizer adam"]),
        ("epochs: 2\nwarmup_steps: 0\n", ["--mode", "eval"], ["--config {path}: warmup_steps, epochs have no effect with --mode eval"]),
        ("beta1: 0.8\nbeta2: 0.8\n", ["--beta1", "0.7"], ["--beta1 has no effect w", "--config {path}: beta2 has no effect w"]),
        ("loss_scale: 8\namp: true\n", [], []),
    ],
)
def test_yaml_keys_without_effect_are_warned_about(tmp_path, text, flags, lines):
    path, config = in_file(tmp_path, text, *flags)
    assert len(warnings_of(config)) == len(lines)
    for found, line in zip(warnings_of(config), lines, strict=True):
        assert found.startswith(line.format(path=path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nseed: 2\n", "run.yaml, line 3: not valid YAML: 'seed' is given twice, first in line 2"),
        ("seed: 1:30\n", "run.yaml: seed: '1:30' is not a whole number"),
        ("learning_rate: 1:30\n", "run.yaml: learning_rate: '1:30' is not a number"),
        ('log_path: "a\\0b"\n', "run.yaml: log_path: 'a\\x00b' holds a character that is not allowed in paths and names"),
        ('log_path: "a\\uD800b"\n', "is not allowed in paths and names"),
        ("top_mlp_dims: [[8, 4], 1]\n", "run.yaml: top_mlp_dims: expected a list of values, found a list in it"),
        ("top_mlp_dims: [{a: 1}, 1]\n", "run.yaml: top_mlp_dims: expected a list of values, found a mapping in it"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{k}: &{k} [{', '.join(9 * ['*' + j])}]\n" for j, k in zip("abcdefgh", "bcdefghi", strict=True)),
            "values with every alias written out",
        ),
        ("seed: " + 3000 * "x", "is not a whole number"),
    ],
    ids=lambda value: value[:20],
)
def test_ambiguous_yaml_file_is_a_short_error(tmp_path, text, message):
    with refused(message) as raised:
        in_file(tmp_path, text)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        (DeviceConfig, {"amp_dtype": "int3"}, "--amp_dtype int3: expected one of float16, bfloat16"),
        (DeviceConfig, {"amp": "no"}, "--amp no: expected true or false"),
        (DeviceConfig, {"amp": 1}, "--amp 1: expected true or false"),
        (ModelConfig, {"embedding_dim": 8.5}, "--embedding_dim 8.5: expected a whole number"),
        (ModelConfig, {"embedding_dim": True}, "--embedding_dim True: expected a whole number"),
        (ModelConfig, {"top_mlp_dims": 3}, "--top_mlp_dims 3: expected a list of whole numbers"),
        (ModelConfig, {"top_mlp_dims": (2.5, 1)}, "--top_mlp_dims 2.5,1: expected a list of whole numbers"),
        (DataConfig, {"out_of_range": None}, "--out_of_range None: expected one of error, clip, hash"),
        (DataConfig, {"max_table_size": "3"}, "--max_table_size 3: expected a whole number"),
        (ScheduleConfig, {"learning_rate": "1"}, "--learning_rate 1: expected a number"),
    ],
)
def test_constructor_rejects_values_of_a_wrong_type(group, values, message):
    with pytest.raises(ValueError, match=message):
        group(**values)


def test_given_holds_the_flags_given():
    assert configure("--amp", "--seed=0").given == {"dataset_type", "amp", "seed"}


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_nvidia_flags_are_accepted_with_a_warning(name):
    (warning,) = warnings_of(configure(f"--{name}", "true"))
    assert warning.startswith(f"--{name} has no effect: ")


@pytest.mark.parametrize(
    ("flags", "warnings"),
    [
        ([], []),
        (["--amp", "--loss_scale", "1024", "--seed", "0"], []),
        (["--mode", "eval", "--epochs", "2"], ["--epochs has no effect with --mode eval"]),
        (["--mode", "predict", "--max_steps", "2"], ["--max_steps has no effect with --mode predict"]),
        (["--mode", "inference", "--max_steps", "2"], []),
        (["--predictions_path", "x"], ["--predictions_path has no effect with --mode train"]),
        (["--beta1", "0.8"], ["--beta1 has no effect without --optimizer adam"]),
        (["--cpu", "--notf32"], ["--tf32 has no effect with --cpu"]),
        (["--beta1", "0.8", "--optimizer", "adam"], []),
        (["--amp_dtype", "bfloat16"], ["--amp_dtype has no effect without --amp"]),
        (["--loss_scale", "2"], ["--loss_scale has no effect without --amp"]),
        (["--test_freq", "3", "--evals_per_epoch", "3"], ["--evals_per_epoch has no effect with --test_freq"]),
        (["--dataset_path", "x"], ["--dataset_path has no effect with --dataset_type synthetic, unless --synthetic_dataset_use_feature_spec"]),
        (["--dataset_path", "x", "--synthetic_dataset_use_feature_spec"], []),
        (["--dataset_type", "tf_raw", "--dataset_path", "x", "--synthetic_dataset_valid_batches", "3"], ["without --dataset_type synthetic"]),
        (["--dataset_type", "tf_raw", "--dataset_path", "x", "--synthetic_dataset_hotness", "3"], ["without --dataset_type synthetic, or with a f"]),
        (["--plan_workers", "4"], ["--plan_workers has no effect with --mode train"]),
        (["--cpu", "--cpu_offloading_threshold_gb", "4"], ["--cpu_offloading_threshold_gb has no effect with --cpu"]),
        (["--embedding_zeros_initializer", "--restore_checkpoint_path", "x"], ["has no effect with --restore_checkpoint_path"]),
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_flags_without_effect_are_warned_about(flags, warnings):
    found = warnings_of(configure(*flags))
    assert len(found) == len(warnings)
    assert all(expected in line for expected, line in zip(warnings, found, strict=True))


@pytest.mark.parametrize(
    ("words", "value"),
    [(["--xla"], True), (["--xla", "true"], True), (["--xla=0"], False), (["--noxla"], False), (["--xla", "all"], "all"), (["--xla=ALL"], "all")],
)
def test_all_spellings_of_xla(words, value):
    assert configure(*words).device.xla == value
    assert configure(*words, "--amp").device.amp is True


def test_help_loads_no_tensorflow():
    code = "import sys, runpy; sys.argv[1:] = ['--help']\n"
    code += "try: runpy.run_path('dlrm.py', run_name='__main__')\n"
    code += "except SystemExit as end: print('code', end.code)\n"
    code += "print('heavy', [name for name in ('tensorflow', 'keras', 'horovod', 'tensorstore', 'polars') if name in sys.modules])"
    result = run("-c", code)
    assert result.stdout.endswith("code 0\nheavy []\n"), result.stdout[-500:] + result.stderr
    for _, field in FIELDS:
        assert f"--{field.name}" in result.stdout
    assert "horovodrun -np 1" in result.stdout  # commands of the docstring


def test_parsing_loads_no_tensorflow():
    code = "import sys; from utils.dialects.command_line import parse; parse(['--dataset_type', 'synthetic'], ''); print('tensorflow' in sys.modules)"
    result = run("-c", code)
    assert result.stdout == "False\n", result.stderr


def test_default_bottom_mlp_ends_at_embedding_dim():
    assert configure().model.bottom_mlp_dims == (512, 256, 128)
    assert configure("--embedding_dim", "16").model.bottom_mlp_dims == (512, 256, 16)


def test_options_refer_to_existing_options():
    options = {field.name: field.metadata for group in GROUPS for field in dataclasses.fields(group)}
    for name, facts in options.items():
        others = [facts["needs"], *facts["not_with"], *facts["replaced_by"]]
        assert {words.split()[0] for words in others if words} <= options.keys(), name


BOUNDED = [(group, field, field.metadata["bounds"]) for group, field in FIELDS if field.metadata.get("bounds")]


@pytest.mark.parametrize(("group", "field", "bounds"), BOUNDED, ids=[field.name for _, field, _ in BOUNDED])
def test_values_out_of_bounds_are_rejected(group, field, bounds):
    whole = field.type in (int, int | None)
    refused = [float("nan"), float("inf"), 10**400] if not whole else []
    if bounds.least > -1e300:
        refused.append(bounds.least if bounds.above else bounds.least - (1 if whole else 1e-6))
    if bounds.most < 1e300:
        refused.append(bounds.most if bounds.below else bounds.most + (1 if whole else 1e-6))
    assert refused
    for value in set(refused) - set(bounds.besides):
        with pytest.raises(UserError) as error:
            build(group, {field.name: value})
        assert str(error.value) == f"--{field.name} {value}: expected {bounds.expected}"
    for value in bounds.besides:
        build(group, {field.name: value})
