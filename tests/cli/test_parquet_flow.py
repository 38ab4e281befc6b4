"""NVIDIA's Wide & Deep in its current release: its flags, and its Parquet files, which train to the bits of the same rows in tf_raw."""

import json
import sys

import numpy as np
import polars as pl
import pytest
import yaml
from runs import ROOT, Result, read_log

import wide_and_deep
from tests.dataloading.parquet.outbrain_files import MAP, MULTI_HOT, NUMERICAL, ONE_HOT, nvidia_spec, write_files, write_raw
from utils.checkpoint.reading import Checkpoint
from utils.commands import run_command
from utils.dialects import wide_and_deep as dialect
from utils.dialects.command_line import parse
from utils.errors import UserError

SMALL = ("--cpu", "--deep_hidden_units", "16", "8", "--global_batch_size", "128", "--eval_batch_size", "128", "--affinity", "disabled")
ALONE = ("--cpu", "--affinity", "disabled")
FLAGS = (*SMALL, "--num_epochs", "2", "--deep_warmup_epochs", "0.2", "--deep_learning_rate", "0.01")
WIDTHS = {name: 4 + place % 3 for place, name in enumerate([*ONE_HOT, *MULTI_HOT])}


def configured(*words):
    return parse(words, "", "main.py", dialect.DEFAULTS, dialect.translated)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write a dataset as NVIDIA has it, the same rows as tf_raw, and a file of widths; return their folder."""
    folder = tmp_path_factory.mktemp("outbrain")
    write_raw(folder / "raw", write_files(folder / "parquet"), WIDTHS)
    (folder / "widths.json").write_text(json.dumps(WIDTHS))
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Return a function that runs main.py's main in this process and returns its Result with the log."""

    def call(*flags):
        (tmp_path / "results/log.json").unlink(missing_ok=True)
        monkeypatch.setattr(sys, "argv", ["main.py", "--results_dir", str(tmp_path / "results"), *map(str, flags)])
        capfd.readouterr()
        code = run_command(wide_and_deep.main, "main.py")
        return Result(code, *capfd.readouterr(), read_log(tmp_path / "results/log.json"))

    return call


# Flags --------------------------------------------------------------------------------------------------------------------


def test_flags_of_the_current_release_are_translated(data):
    given = ("--dataset_path", str(data / "parquet"), "--embedding_sizes_file", "w.json", "--combiner", "mean", "--num_auc_thresholds", "8000")
    config = configured(*given, "--disable_map_calculation", "--affinity", "unique_contiguous", "--fspec_file", "feature_spec.yaml")
    assert (config.data.dataset_type, config.data.feature_spec) == ("parquet", "feature_spec.yaml")
    assert (config.features.embedding_sizes_file, config.features.combiner) == ("w.json", "mean")
    assert (config.training.auc_thresholds, config.ranking.ranking_metrics) == (8000, ("none",)) and config.legacy == ()
    assert config.device.affinity == "socket_unique_continuous"


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("all", "socket"),
        ("single", "single"),
        ("single_unique", "single_unique"),
        ("unique_interleaved", "socket_unique_interleaved"),
        ("unique_contiguous", "socket_unique_continuous"),
        ("disabled", "disabled"),
        ("socket", "socket"),
        ("socket_unique_interleaved", "socket_unique_interleaved"),
        ("socket_unique_continuous", "socket_unique_continuous"),
    ],
)
def test_affinities_of_both_releases_are_known(name, here):
    assert configured("--affinity", name).device.affinity == here


def test_type_of_a_dataset_is_found_in_its_specification(data, tmp_path):
    def kind(folder, *flags):
        return configured("--dataset_path", str(folder), *flags).data.dataset_type

    assert kind(data / "parquet") == "parquet" and kind(data / "raw") == kind(tmp_path) == "tf_raw"
    assert kind(data / "parquet", "--dataset_type", "tf_raw") == "tf_raw"
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(nvidia_spec()))
    assert kind(tmp_path, "--fspec_file", "other.yaml") == kind(tmp_path, "--feature_spec=other.yaml") == "parquet"
    spec = nvidia_spec()
    del spec["channel_spec"]  # the types of the chunks are enough, and a broken specification is reported by its reader
    (tmp_path / "feature_spec.yaml").write_text(yaml.safe_dump(spec))
    assert kind(tmp_path) == "parquet"
    for content in ("a: [", "[]", "channel_spec: 3\nsource_spec: {train: 4, test: [5]}", ""):
        (tmp_path / "feature_spec.yaml").write_text(content)
        assert kind(tmp_path) == "tf_raw"


def test_default_data_is_that_of_the_release_whose_flags_are_given(tmp_path, monkeypatch):
    assert configured().data.dataset_type == "tfrecord"
    for flags in (["--combiner", "sum"], ["--fspec_file", "f"], ["--disable_map_calculation"], ["--num_auc_thresholds", "9"]):
        config = configured(*flags)
        assert (config.data.dataset_type, config.data.dataset_path, config.data.patterns) == ("parquet", "/outbrain/data", {})
    assert configured("--mode", "export", "--num_auc_thresholds", "9").data.dataset_path is None
    monkeypatch.setattr(dialect, "DATASET_PATH", str(tmp_path))
    assert configured().data.dataset_type == "tfrecord"
    (tmp_path / "feature_spec.yaml").write_text(yaml.safe_dump(nvidia_spec()))
    assert configured().data.dataset_path == str(tmp_path)
    monkeypatch.setattr(dialect, "TRAIN_PATTERN", str(tmp_path / "part*"))  # where both releases' data lie, the first one's are read, as before
    assert configured().data.dataset_type == "tfrecord"


def test_widths_file_of_nvidias_repository_is_the_default(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("--dataset_path", str(data / "parquet"))
    assert configured(*given).features.embedding_sizes_file is None
    (tmp_path / "data/outbrain").mkdir(parents=True)
    (tmp_path / "data/outbrain/embedding_sizes.json").write_text("{}")
    assert configured(*given).features.embedding_sizes_file == "data/outbrain/embedding_sizes.json"
    assert configured(*given, "--embedding_dim", "8").features.embedding_sizes_file is None
    assert configured("--dataset_path", str(data / "raw")).features.embedding_sizes_file is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--combiner max", "'max' is not one of sum, mean"),
        ("--num_auc_thresholds 1", "--num_auc_thresholds 1: expected at least 2"),
        ("--num_auc_thresholds many", "--num_auc_thresholds: 'many' is not a whole number"),
        ("--num_auc_thresholds 5 --auc_thresholds 5", "--num_auc_thresholds and --auc_thresholds set the same option"),
        ("--fspec_file a --feature_spec a", "--fspec_file and --feature_spec set the same option"),
        ("--disable_map_calculation --ranking_metrics mrr", "--ranking_metrics: another flag sets it to none; drop --ranking_metrics"),
        ("--disable_map_calculation --best_metric map@12", "--best_metric map@12 and --disable_map_calculation exclude each other"),
        ("--embedding_sizes_file a --embedding_dim 8", "--embedding_sizes_file and --embedding_dim set the same option"),
        ("--train_data_pattern a --fspec_file f", "--train_data_pattern and --fspec_file exclude each other: TFRecords, or Parquet files"),
        ("--affinity core", "'core' is not one of socket, single"),
        ("--map_calculation_enabled", "unknown flag --map_calculation_enabled"),
    ],
)
def test_invalid_flags_are_a_one_line_error(given, message):
    with pytest.raises(UserError) as error:
        configured(*given.split(" "))
    assert message in str(error.value) and "\n" not in str(error.value), error.value


# Runs ---------------------------------------------------------------------------------------------------------------------


def arrays(path):
    checkpoint = Checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names("")}


def assert_same_bits(one, two):
    expected, found = arrays(one), arrays(two)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def evaluations(result, key):
    return [(line["step"], line["data"]) for line in result.log if key in line.get("data", {})]


@pytest.mark.parametrize("flags", [(), ("--shuffle_window", "3", "--shuffle_batch_order", "--combiner", "mean")], ids=["in order", "shuffled, mean"])
def test_parquet_files_train_to_the_bits_of_tf_raw(command, data, tmp_path, flags):
    """The run on Parquet files stops after 9 of 16 steps and is resumed, without its widths and combiner; then it is evaluated."""
    raw = command("--dataset_path", data / "raw", *FLAGS, *flags, "--model_dir", tmp_path / "raw")
    given = ("--dataset_path", data / "parquet", *FLAGS, *flags, "--model_dir", tmp_path / "parquet")
    first = command(*given, "--embedding_sizes_file", data / "widths.json", "--max_steps", "9")
    assert first.code == 0 and first.err == ""
    resumed = command("--dataset_path", data / "parquet", *FLAGS, *flags[:3], "--model_dir", tmp_path / "parquet", "--use_checkpoint")
    for key in ("auc", "validation_loss", "samples", "map_at_12", "groups"):
        assert resumed.final[key] == raw.final[key], key
    assert_same_bits(tmp_path / "raw/checkpoint", tmp_path / "parquet/checkpoint")
    given = (
        "--dataset_path",
        data / "parquet",
        "--cpu",
        "--affinity",
        "disabled",
        "--evaluate",
        "--use_checkpoint",
        "--model_dir",
        tmp_path / "parquet",
    )
    evaluated = command(*given)
    assert evaluated.final["auc"] == raw.final["auc"] and evaluated.err == ""


@pytest.mark.parametrize("kind", ["raw", "parquet"])
def test_run_with_overruled_features_is_resumed_with_and_without_the_flags(command, data, tmp_path, kind):
    """The widths are NVIDIA's or those of the specification at first; then those of the checkpoint."""
    given = ("--dataset_path", data / kind, *FLAGS, "--model_dir", tmp_path / "m")
    assert command(*given, "--max_steps", "3").code == 0
    assert command(*given, "--max_steps", "5", "--use_checkpoint", "--combiner", "sum").code == 0
    resumed = command(*given, "--use_checkpoint")
    assert resumed.code == 0 and resumed.final["steps"] == 16, resumed.err


def test_deep_part_pools_by_the_combiner_and_the_wide_part_sums(command, data, tmp_path):
    """The scores of a trained model, computed with NumPy: lists are averaged in the deep part and summed in the wide part."""
    given = (
        "--dataset_path",
        data / "parquet",
        "--embedding_sizes_file",
        data / "widths.json",
        "--model_dir",
        tmp_path / "m",
        "--affinity",
        "disabled",
    )
    assert command(*given, *FLAGS, "--combiner", "mean", "--linear_learning_rate", "0.5").code == 0
    predicted = command(*given, *ALONE, "--mode", "predict", "--use_checkpoint", "--predictions_path", tmp_path / "p.parquet")
    assert predicted.code == 0, predicted.err
    found, frame = Checkpoint(tmp_path / "m/checkpoint"), pl.concat(pl.read_parquet(path) for path in sorted((data / "parquet/valid").iterdir()))
    numbers = np.stack([frame[name].to_numpy().astype(np.float32) for name in NUMERICAL], axis=1)
    deep, logits = [numbers], numbers @ found.read("dense/wide/0/kernel")[:, 0] + found.read("dense/wide/0/bias")[0]
    for name in (*ONE_HOT, *MULTI_HOT):
        rows, flat = found.read(f"tables/{name}/weights"), found.read(f"tables/{name}_wide/weights")[:, 0]
        assert rows.shape[1] == WIDTHS[name]
        lists = [one if isinstance(one, list) else [one] for one in frame[name].to_list()]
        deep.append(np.stack([rows[one].mean(axis=0) if one else np.zeros(rows.shape[1]) for one in lists]))
        logits = logits + np.array([flat[one].sum() for one in lists])
    last = np.concatenate(deep, axis=1)
    for layer in (0, 1):
        last = np.maximum(last @ found.read(f"dense/deep/{layer}/kernel") + found.read(f"dense/deep/{layer}/bias"), 0)
    logits = logits + (last @ found.read("dense/deep/2/kernel") + found.read("dense/deep/2/bias"))[:, 0]
    scores = pl.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_allclose(scores["score"].to_numpy(), 1 / (1 + np.exp(-logits.astype(np.float64))), atol=1e-6, rtol=0)
    np.testing.assert_array_equal(scores["group"].to_numpy(), frame[MAP].to_numpy())


def test_log_has_the_keys_of_the_current_release(command, data, tmp_path):
    given = ("--dataset_path", data / "parquet", "--embedding_sizes_file", data / "widths.json", "--model_dir", tmp_path / "m")
    result = command(*given, *FLAGS, "--print_freq", "3")
    steps = evaluations(result, "loss")
    assert [step for step, _ in steps] == [[step, 16] for step in (3, 6, 9, 12, 15, 16)]
    for _, data_of_step in steps:
        assert data_of_step["loss"] == round(data_of_step["loss"], 4) and not {"binary_accuracy", "auc", "streaming_map"} & set(data_of_step)
    evaluated = evaluations(result, "auc_roc")
    assert [step for step, _ in evaluated] == [[8], [16], []]
    for _, figures in evaluated:
        assert {"loss_val", "streaming_map_val", "auc_roc"} <= set(figures) and not {"auc_val", "binary_accuracy_val"} & set(figures)
    assert result.final["auc_roc"] == result.final["auc"] and 0 < result.final["streaming_map_val"] == result.final["map_at_12"] < 1
    units = {line["metric"]: line["metadata"]["unit"] for line in result.log if line["type"] == "METADATA"}
    assert units["streaming_map_val"] is None and units["train_throughput"] == units["validation_throughput"] == "samples/s"

    alone = (*ALONE, "--evaluate", "--use_checkpoint", "--eval_batch_size", "1", "--disable_map_calculation")
    result = command(*given, *alone)
    lines = [line for line in result.log if isinstance(line.get("step"), list)]
    assert [line["step"] for line in lines] == [[16], []] and set(lines[0]["data"]) == {"loss_val", "auc_roc"}
    assert "streaming_map_val" not in result.final and "map_at_12" not in result.final

    measured = command(*given[:4], *SMALL, "--benchmark", "--benchmark_steps", "5", "--benchmark_warmup_steps", "2")
    assert [step for step, _ in evaluations(measured, "batch_samplesps")] == [[1, 3], [1, 4], [1, 5]] and measured.final["train_throughput"] > 0
    measured = command(*given[:4], *SMALL, "--evaluate", "--benchmark", "--benchmark_steps", "5", "--benchmark_warmup_steps", "2")
    assert measured.final["validation_throughput"] > 0


def test_map_channel_may_be_empty(command, data, tmp_path):
    spec = nvidia_spec()
    spec["channel_spec"]["map"] = []
    write_files(tmp_path / "d", spec=spec)
    for name in ("train", "valid"):
        for path in (tmp_path / "d" / name).iterdir():
            pl.read_parquet(path).drop(MAP).write_parquet(path)
    given = ("--dataset_path", tmp_path / "d", "--embedding_sizes_file", data / "widths.json", *FLAGS, "--max_steps", "2")
    result = command(*given, "--model_dir", tmp_path / "m", "--disable_map_calculation")
    assert result.err == "" and "streaming_map_val" not in result.final and result.final["auc_roc"] > 0
    warned = command(*given, "--model_dir", tmp_path / "n")
    assert warned.code == 0 and "channel_spec.map is empty, so no MAP is computed" in warned.err and warned.err.count("\n") == 1


def test_nvidias_widths_are_planned_without_a_file(command, data, tmp_path):
    """The widths of the 16 features add up to 1,235; the layers of the deep part take 1,248 values."""
    given = ("--dataset_path", data / "parquet", "--mode", "plan", "--plan_format", "json", "--cpu", "--global_batch_size", "128")
    planned = json.loads(command(*given).out)
    rows = {**ONE_HOT, **MULTI_HOT}
    wide = {"platform": 19} | dict.fromkeys(("ad_id", "document_id", "document_id_promo", "campaign_id"), 128)
    assert planned["embedding_parameters"] == sum(count * (wide.get(name, 64) + 1) for name, count in rows.items())
    planned = json.loads(command(*given, "--embedding_dim", "8").out)  # a flag that is given wins
    assert planned["embedding_parameters"] == sum(count * 9 for count in rows.values())
    assert command(*given, "--embedding_sizes_file", tmp_path / "w").code == 1


def test_what_the_files_hold_besides_is_named(command, data, tmp_path):
    """Columns that are not read, and lists that are cut, are named in a line each, in every mode that reads rows."""
    lists = pl.Series([[1, 2, 3, 4], []] * 500)
    write_files(tmp_path / "d", change=lambda frame: frame.with_columns(topic_id_list=lists[: frame.height], uuid=pl.lit("u")))
    given = ("--dataset_path", tmp_path / "d", "--embedding_sizes_file", data / "widths.json", "--model_dir", tmp_path / "m")
    result = command(*given, *FLAGS, "--max_steps", "1", "--valid_fraction", "0.1")
    assert result.code == 0, result.err
    assert result.err.count("unused columns of the Parquet files: uuid") == 1 and result.err.count("only the first 3 of a list are read") == 2
    assert "train: 500 of 1,000 rows have more than 3 ids in topic_id_list" in result.err and "test: 165 of 330 rows" in result.err


def test_bad_data_is_a_one_line_error_before_anything_is_written(command, data, tmp_path):
    def refused(message, *flags, folder="d"):
        result = command("--dataset_path", tmp_path / folder, *FLAGS, "--model_dir", tmp_path / "m", *flags)
        assert result.code == 1 and message in result.err and result.err.count("error: ") == 1 and "Traceback" not in result.err, result.err
        assert not (tmp_path / "m").exists() or not list((tmp_path / "m").rglob("step-*"))

    refused("d/feature_spec.yaml: no such file")
    write_files(tmp_path / "d")
    refused("no width for feature document_id", "--embedding_sizes_file", write(tmp_path / "w.json", '{"ad_id": 4}'))
    refused("width '1.5', expected a whole number", "--embedding_sizes_file", write(tmp_path / "w.json", '{"ad_id": 1.5}'))
    refused("has the channels of NVIDIA's Wide & Deep, whose rows are Parquet files; --dataset_type parquet reads them", "--dataset_type", "tf_raw")
    (path := tmp_path / "d/train/part_1.parquet").write_bytes(path.read_bytes()[:-50])
    refused(f"{path}: cannot be read as Parquet: ")
    write_files(tmp_path / "e", change=lambda frame: frame.with_columns(platform=pl.Series([*[0] * 300, 4, *[0] * 699])[: frame.height]))
    refused("part_0.parquet, row 300 of the file: feature platform, row 300: id 4 is not in [0, 4)", folder="e")
    hashed = command("--dataset_path", tmp_path / "e", *FLAGS, "--model_dir", tmp_path / "n", "--out_of_range", "hash", "--max_steps", "3")
    assert hashed.code == 0, hashed.err


def test_checkpoint_of_another_pooling_is_refused(command, data, tmp_path):
    given = ("--dataset_path", data / "parquet", "--embedding_sizes_file", data / "widths.json", "--model_dir", tmp_path / "m")
    assert command(*given, *FLAGS, "--max_steps", "2", "--combiner", "mean").code == 0
    evaluated = command(*given, *ALONE, "--evaluate", "--use_checkpoint")
    assert evaluated.code == 0, evaluated.err  # the checkpoint's pooling is taken over
    other = command(*given, *ALONE, "--evaluate", "--use_checkpoint", "--combiner", "sum")
    assert other.code == 1 and "the vectors of feature topic_id_list were pooled by mean" in other.err
    resumed = command(*given, *FLAGS, "--use_checkpoint", "--combiner", "sum")
    assert resumed.code == 1 and "the vectors of feature topic_id_list were pooled by mean" in resumed.err


def write(path, content):
    path.write_text(content)
    return path


def test_dlrm_reads_parquet_files_by_its_flag(run, data, tmp_path):
    small = ("--cpu", "--interaction", "cat", "--bottom_mlp_dims", "8,4", "--top_mlp_dims", "8,1", "--batch_size", "128", "--max_steps", "3")
    trained = [
        run("--dataset_path", data / name, "--dataset_type", kind, *small, *widths, "--save_checkpoint_path", tmp_path / name)
        for name, kind, widths in (("raw", "tf_raw", ()), ("parquet", "parquet", ("--embedding_sizes_file", data / "widths.json")))
    ]
    assert trained[0].final["auc"] == trained[1].final["auc"]
    assert_same_bits(tmp_path / "raw", tmp_path / "parquet")
    refused = run("--dataset_path", data / "raw", "--dataset_type", "parquet", *small)
    assert refused.code == 1 and "has the channel categorical, so this is no specification of Parquet files; drop --dataset_type" in refused.err
    assert run("--dataset_path", ROOT / "nothing", "--dataset_type", "parquet", *small).code == 1
