"""Every benchmark runs and writes plausible figures. No test checks how fast anything is."""

import json
import math

import numpy as np
import pytest

from benchmarks.bag_values import probe
from benchmarks.embedding_bags import check_same
from benchmarks.preproc_peers import by_pandas
from benchmarks.raw_logs import names_of, write_log
from benchmarks.workload import MLPERF_HOTNESS, hotness_of_tables
from preproc.criteo import command as criteo
from tests.dataloading.make_data import small_spec, write_dataset
from tests.helpers.commands import run, run_here
from tests.helpers.datasets import spec_in
from tests.preproc.spark.spark_cluster import needs_spark

NAMES = (
    "accuracy",
    "checkpoint",
    "dataloader",
    "embedding_bags",
    "inference",
    "large",
    "large_turns",
    "metrics",
    "observation",
    "optimizers",
    "preproc",
    "preproc_spark",
    "published",
    "publishing",
    "raw_rows",
    "replicas",
    "resources",
    "scaling",
    "serving",
    "small_logs",
    "small_sample",
    "startup",
    "train_step",
    "whole_run",
)


def quick(name, tmp_path, *flags, how=run):
    """Run a benchmark with --quick, in a process of its own where `how` is not `run_here`; return its figures and what it printed."""
    result = how("-m", f"benchmarks.{name}", "--quick", "--json", tmp_path / "figures.json", *flags)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {"command", "time", "machine", "options"} <= set(figures)
    return figures, result.stdout


def sound(*values):
    return all(math.isfinite(value) and value > 0 for value in values)


@pytest.mark.slow
def test_checkpoint(tmp_path):
    figures, printed = quick("checkpoint", tmp_path, "--folder", tmp_path, "--gib", "0.004")
    assert set(figures["seconds"]) == set(figures["gb_per_s"]) == {"raw write", "save", "raw read", "restore"}
    assert set(figures["of_raw"]) == {"save", "restore"}
    assert sound(*figures["gb_per_s"].values(), *figures["of_raw"].values(), figures["bytes"])
    assert "GB/s" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@pytest.mark.slow
def test_preproc(tmp_path):
    figures, printed = quick("preproc", tmp_path, "--folder", tmp_path)
    for kind in ("log", "table"):
        assert figures[kind]["rows"] == 2100
        assert sound(*figures[kind]["rows_per_s"].values(), *figures[kind]["peak_mib"].values())
    assert {"preproc.criteo", "pandas, scikit-learn"} <= set(figures["log"]["rows_per_s"])
    assert figures["outbrain"]["rows"] > 1500 and set(figures["outbrain"]["rows_per_s"]) == {"preproc.outbrain", "pandas, merges"}
    assert sound(*figures["outbrain"]["rows_per_s"].values(), *figures["outbrain"]["peak_mib"].values())
    assert "pandas, scikit-learn" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@needs_spark
@pytest.mark.slow
def test_preproc_spark(tmp_path):
    figures, printed = quick("preproc_spark", tmp_path, "--folder", tmp_path)
    rates, peaks = figures["table"]["rows_per_s"], figures["table"]["peak_mib"]
    assert set(rates) == {"polars", "local[2]", "1 workers"} and sound(*rates.values(), *peaks.values())
    assert "hours for 180 million" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@pytest.mark.slow
def test_raw_rows(tmp_path):
    """The benchmark itself checks that Keras's lookup layers give the same ids and numbers."""
    figures, printed = quick("raw_rows", tmp_path, "--folder", tmp_path)
    for kind in ("log", "table"):
        assert set(figures[kind]["seconds"]) == {"score_raw", "score, of encoded rows", "score_raw's encoding", "Keras's lookup layers"}
        assert all(sound(*values) for some in figures[kind]["seconds"].values() for values in some.values())
    assert "13 numbers and 26 texts a row" in printed and "0 numbers and 20 texts a row" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


def test_preprocessing_peers_give_the_same_numericals_and_equivalent_ids(tmp_path):
    """pandas with scikit-learn numbers ids by value and not by frequency: each of its ids stands for exactly one of ours."""
    files = tmp_path / "train", tmp_path / "test"
    write_log(files[0], 3000, 0)
    write_log(files[1], 500, 1)
    by_pandas(files, "\t", names_of("log"), 3, tmp_path / "pandas")
    criteo.main([*map(str, ["--train", files[0], "--test", files[1], "--dst", tmp_path / "ours", "--frequency_threshold", 3])])
    ours, theirs = tmp_path / "ours" / "train", tmp_path / "pandas" / "train"
    assert (ours / "label.bin").read_bytes() == (theirs / "label.bin").read_bytes()
    np.testing.assert_array_equal(np.fromfile(ours / "numerical.bin", np.float16), np.fromfile(theirs / "numerical.bin", np.float16).reshape(-1))
    spec = spec_in(tmp_path / "ours")
    for feature in spec.categorical:
        mine, other = np.fromfile(ours / f"{feature.name}.bin", feature.dtype), np.fromfile(theirs / f"{feature.name}.bin", np.int32)
        known = mine > 0
        assert len(set(zip(mine[known].tolist(), other[known].tolist(), strict=True))) == feature.cardinality - 1


@pytest.mark.slow
def test_resources(tmp_path):
    figures, printed = quick("resources", tmp_path)
    (by_step,) = figures["by_step"]
    assert len(by_step) > 5 and "descriptors, by worker" in printed
    assert all(len(workers) == 1 and sound(*workers[0].values()) for workers in by_step.values())


@pytest.mark.slow
def test_dataloader(tmp_path):
    figures, printed = quick("dataloader", tmp_path, "--folder", tmp_path)
    assert len(figures["pipelines"]) == 7
    for name, facts in figures["pipelines"].items():
        assert name in printed
        assert sound(facts["samples_per_s"], facts["of_best_peer"], facts["batch_ms"])
    assert figures["pipelines"][figures["best_peer"]]["of_best_peer"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@pytest.mark.slow
def test_startup(tmp_path):
    figures, _ = quick("startup", tmp_path)
    assert set(figures["medians"]) == {"python", "import tensorflow", "dlrm.py --help", "building the tables", "first step, float32"}
    assert sound(*(facts["seconds"] for facts in figures["medians"].values()), figures["table_bytes"], figures["memory"]["of_tables"])


@pytest.mark.slow
def test_scaling(tmp_path):
    figures, _ = quick("scaling", tmp_path)
    one, two = figures["workers"]["1"], figures["workers"]["2"]
    assert one["efficiency"] == 1
    assert sound(one["samples_per_s"], two["samples_per_s"], two["efficiency"], two["collectives_share"], two["collectives_ms"])
    assert two["exchanged_of_minimum"] == 1, "whole tables on two workers send exactly the minimum"
    assert two["summed_of_minimum"] == pytest.approx(1, abs=0.01)


@pytest.mark.slow
def test_train_step(tmp_path):
    figures, printed = quick("train_step", tmp_path)
    (result,) = figures["results"]
    steps = {"ceiling", "project", "project --xla", "Keras", "Keras jit_compile", "plain TensorFlow"}
    assert set(result["steps"]) == steps and result["best_peer"] in steps
    for facts in result["steps"].values():
        assert sound(facts["samples_per_s"], facts["of_ceiling"], facts["of_best_peer"], facts["gflop_per_s"])
    assert result["steps"]["ceiling"]["of_ceiling"] == 1
    assert sound(result["ratios"]["xla"])
    parts = {"lookup", "interaction", "MLPs", "sparse update", "dense optimizer"}
    assert set(result["parts"]) == {*parts, "sum of the parts", "the whole step", "rest"}
    assert sound(*(result["parts"][part] for part in parts))
    assert all(name in printed for name in steps | parts)


@pytest.mark.slow
def test_train_step_of_cross_layers(tmp_path):
    figures, printed = quick("train_step", tmp_path, "--interaction", "cross", "--xla", "off", "--cross_layer_projection_dim", "16")
    (result,) = figures["results"]
    assert set(result["seconds"]) == {"ceiling", "project", "Keras", "Keras jit_compile", "plain TensorFlow"} and "parts" not in result
    assert all(sound(*seconds) for seconds in result["seconds"].values()) and "computed by" in printed


@pytest.mark.slow
def test_train_step_of_wide_and_deep(tmp_path):
    figures, printed = quick("train_step", tmp_path, "--model", "wide_and_deep")
    (result,) = figures["results"]
    assert set(result["steps"]) - {"tf_keras WideDeepModel"} == {"ceiling", "project", "project --xla", "Keras", "Keras jit_compile"}
    for name, facts in result["steps"].items():
        assert sound(facts["samples_per_s"], facts["of_ceiling"], facts["of_best_peer"], facts["gflop_per_s"]) and name in printed
    assert result["widths"] == [8, 8, 8, 1, 1, 1] and "parts" not in result
    assert ("tf_keras WideDeepModel" in result["steps"]) == (figures["tf_keras"] is not None) == ("tf_keras is not installed" not in printed)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepfm", "finalmlp"])
def test_train_step_of_models_of_vectors(tmp_path, model):
    figures, printed = quick("train_step", tmp_path, "--model", model, "--xla", "off")
    steps = figures["results"][0]["steps"]
    assert set(steps) == {"ceiling", "project", "Keras", "Keras jit_compile"} and all(one["of_best_peer"] > 0 for one in steps.values())
    assert f"{model}, float32, power_law ids" in printed


@pytest.mark.slow
def test_train_step_of_lists(tmp_path):
    figures, printed = quick("train_step", tmp_path, "--hotness", "2,1,4", "--xla", "off")
    (result,) = figures["results"]
    assert set(result["seconds"]) >= {"project", "Keras", "Keras jit_compile", "plain TensorFlow", "lookup", "sparse update"}
    assert all(sound(*seconds) for seconds in result["seconds"].values()) and "7 a sample" in printed


@pytest.mark.slow
def test_embedding_bags(tmp_path):
    """The benchmark itself checks that everything it compares gives the same vectors, before an update and after."""
    figures, printed = quick("embedding_bags", tmp_path, "--optimizer", "sgd", "--precisions", "float32,bfloat16")
    assert [result["precision"] for result in figures["results"]] == ["float32", "bfloat16"] and "fbgemm is not measured" in printed
    for result in figures["results"]:
        assert {"project", "copying", "TensorFlow"} <= set(result["figures"]) and set(result["seconds"]) == {"lookup", "update", "both"}
        for name, facts in result["figures"].items():
            assert name in printed
            assert all(sound(*facts[measure].values()) for measure in ("lookup", "update", "both"))
        assert all(result["figures"][peer][measure]["of_best_peer"] == 1 for measure, peer in result["best_peer"].items())


def test_vectors_that_differ_are_an_error():
    class Contender:
        rule = "sgd"

        def __init__(self, *probes):
            self.probes = lambda: probes

    check_same({"project": Contender(0.5, 3), "TensorFlow": Contender(0.501, 3.01)})
    for other in (Contender(0.6, 3), Contender(0.5, 3.1), Contender(0.5, math.nan)):
        with pytest.raises(RuntimeError, match="vectors of TensorFlow and project differ"):
            check_same({"project": Contender(0.5, 3), "TensorFlow": other})


def test_probes_of_different_vectors_differ():
    vectors = np.random.default_rng(0).standard_normal((64, 24), np.float32)
    assert probe(vectors) == pytest.approx(probe(vectors + np.float32(1e-4)), abs=0.01)
    assert abs(probe(vectors) - probe(vectors[::-1])) > 0.1 and abs(probe(vectors) - probe(np.roll(vectors, 8, axis=1))) > 0.1


@pytest.mark.parametrize(("text", "rows", "expected"), [("3", (9, 9), (3, 3)), ("3,1", (9, 1), (3, 1)), ("mlperf", (100,) * 26, MLPERF_HOTNESS)])
def test_hotness_of_tables(text, rows, expected):
    assert hotness_of_tables(text, rows) == expected and sum(MLPERF_HOTNESS) == 214


@pytest.mark.slow
def test_small_sample(tmp_path):
    write_dataset(tmp_path / "d", small_spec(), train=400, test=100)
    figures, printed = quick("small_sample", tmp_path, "--dataset_path", tmp_path / "d")
    assert set(figures["auc"]) == set(figures["settings"]) and all(len(aucs) == 1 and 0 < aucs[0] < 1 for aucs in figures["auc"].values())
    assert 0 < figures["logistic_regression"]["auc"] < 1 and "logistic regression" in printed and "computed by" in printed


@pytest.mark.slow
def test_metrics(tmp_path):
    figures, _ = quick("metrics", tmp_path)
    assert {"exact AUC", "all metrics", "MAP@12, rows anywhere"} < set(figures["medians"])
    assert all(sound(facts["seconds"]) for facts in figures["medians"].values())


@pytest.mark.slow
def test_accuracy(tmp_path):
    figures, printed = quick("accuracy", tmp_path, "--folder", tmp_path, "--precisions", "bfloat16", "--cpu")
    assert set(figures["results"]) == {"float32", "bfloat16"}
    assert 0.5 < figures["best_possible_auc"] < 1
    assert all(0 < auc < figures["best_possible_auc"] + 0.1 for facts in figures["results"].values() for auc in facts["auc"])
    assert figures["results"]["float32"]["difference"] == 0 and "bfloat16" in printed


@pytest.mark.slow
def test_observation(tmp_path):
    figures, printed = quick("observation", tmp_path, "--folder", tmp_path)
    (found,) = figures["rounds"]
    assert set(found["inside"]) == {"rows touched", "sums of losses", "times", "figures of a line", "log and TensorBoard"}
    assert sound(*found["inside"].values(), found["step_s"], figures["share"]) and "of a step" in printed


@pytest.mark.slow
def test_whole_run(tmp_path):
    figures, _ = quick("whole_run", tmp_path, "--folder", tmp_path)
    assert set(figures["runs"]) == {"dlrm.py", "its step alone"}
    assert all(sound(facts["samples_per_s"], facts["of_step_alone"]) for facts in figures["runs"].values())


def test_optimizers(tmp_path):
    figures, printed = quick("optimizers", tmp_path, how=run_here)
    assert list(figures["optimizers"]) == ["sgd", "adam", "ftrl"] and "of sgd" in printed
    assert all(sound(facts["samples_per_s"], facts["of_first"]) for facts in figures["optimizers"].values())


@pytest.mark.slow
def test_large(tmp_path):
    figures, printed = quick("large", tmp_path, "--folder", tmp_path)
    (found,) = figures["parts"]["small"]
    assert 0 < found["lazy"]["rows"] < 26 * 500 and found["in memory"]["rows"] is None
    assert all(sound(run["throughput"], run["peak_gib"], run["build_s"]) for run in found.values()) and "small, lazy" in printed


@pytest.mark.slow
def test_large_turns(tmp_path):
    figures, printed = quick("large_turns", tmp_path, "--folder", tmp_path)
    pairs = figures["parts"]["small"]
    assert len(pairs) == 3 and all(sound(*pair) for pair in pairs) and "lazy over in memory" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@pytest.mark.parametrize("name", NAMES)
def test_help(name):
    result = run_here("-m", f"benchmarks.{name}", "--help")
    assert result.returncode == 0 and f"python -m benchmarks.{name}" in result.stdout and "--json" in result.stdout


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("checkpoint", ("--gib", "0"), "--gib 0.0: expected a positive number"),
        ("checkpoint", ("--folder", "/no/such"), "--folder /no/such: no such folder"),
        ("large_turns", ("--parts", "t3,t15"), "--parts: 't15', expected some of t3, t0, small"),
        ("checkpoint", ("--gib", "900000"), "GiB short"),
        ("dataloader", ("--dataset_path", "/no/such"), "/no/such/feature_spec.yaml: no such file"),
        ("serving", ("--batch_sizes", "1,9000"), "--batch_sizes 1,9000: expected sizes from 1 to 8192"),
        ("preproc_spark", ("--kinds", "log,tables"), "--kinds tables: expected some of log, table"),
        ("raw_rows", ("--kinds", "log,rows"), "--kinds log,rows: expected one or more of log, table"),
        ("raw_rows", ("--batch_sizes", "1,64", "--rows", "20"), "--batch_sizes 1,64: expected sizes from 1 to --rows 20"),
        ("inference", ("--torch_python", "/no/such"), "--torch_python /no/such: no such program"),
        ("inference", ("--ways", "fast"), "--ways fast: expected one or more of scorer, inference"),
        ("inference", ("--model", "fm", "--ways", "onnx,keras"), "--ways keras: measures --model dlrm only"),
        ("optimizers", ("--optimizers", "sgd,lion"), "--optimizers sgd,lion: expected one or more of sgd, adagrad"),
        ("startup", ("--xla", "perhaps"), "--xla perhaps: expected one or more of off, on"),
        ("scaling", ("--workers", "3"), "--workers 3: expected positive numbers that divide --batch_size 8192"),
        ("train_step", ("--ids", "normal"), "--ids normal: expected one or more of uniform, power_law"),
        ("train_step", ("--hotness", "2,3"), "--hotness 2,3: 2 numbers for 26 tables; expected one for all, or one for each"),
        ("train_step", ("--hotness", "7", "--t15"), "--hotness 7: table 5 has 4 rows, and the 7 ids of a sample must all be different"),
        ("train_step", ("--model", "wide_and_deep", "--t15"), "--t15 has no effect with --model wide_and_deep; drop it"),
        ("train_step", ("--model", "wide_and_deep", "--precisions", "float16"), "no loss scale for two optimizers; add --peers false"),
        ("embedding_bags", ("--hotness", "many"), "or one for each feature, separated by commas; or mlperf"),
        ("embedding_bags", ("--torch_python", "/no/such"), "--torch_python /no/such: no such program"),
        ("embedding_bags", ("--quick", "--torch_python", "/bin/true"), "the process that measures fbgemm ended with code 0"),
        ("train_step", ("--model", "finalmlp", "--interaction", "cat"), "--interaction has no effect with --model finalmlp; drop it"),
        ("train_step", ("--bach_size", "3"), "did you mean --batch_size?"),
        ("train_step", ("--json", "/no/such/file"), "--json /no/such/file: its folder does not exist"),
    ],
)
def test_invalid_flags_are_one_line(name, flags, message):
    how = run if "--quick" in flags else run_here  # this one starts another process, whose pipes it leaves to its own end
    result = how("-m", f"benchmarks.{name}", *flags)
    assert result.returncode == 1 and message in result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.splitlines()) == 1
