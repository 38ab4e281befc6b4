"""Names and file formats that users and stored files depend on: they stay valid whatever moves inside the program.

`fixtures/written_before.tar.gz` holds a dataset, a checkpoint after 7 of 16 steps of FLAGS, a repository, raw rows and their scores after 7 and
after 16 steps, all written by commit 9d7037b; and in `exported` the repository as commit e269328 wrote it. This file imports only the names it lists.
"""

import ast
import contextlib
import importlib
import os
import re
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import dlrm
from tests.archives import unpack
from tests.left_out import left_out
from utils.errors import UserError

ROOT = Path(__file__).parents[1]
WITH_HELP = (
    "dataloading.dataloader_benchmark",
    "dataloading.fetch",
    "dataloading.gen_csv",
    "dataloading.generate_feature_spec",
    "dataloading.generate_outbrain",
    "dataloading.prepare_synthetic_dataset",
    "dataloading.put",
    "dataloading.transcode",
    "dataloading.transcribe",
    "dataloading.validate",
    "deployment.deploy",
    "deployment.evaluate_accuracy",
    "preproc.criteo",
    "preproc.nvidia_checkpoint",
    "preproc.outbrain",
    "preproc.sample_log",
    "preproc.table",
    "report.tensorboard",
    "serving.client",
    "serving.load",
    "serving.publish",
    "serving.server",
)
WITHOUT_HELP = ("serving.stub_environment", "serving.triton_install")
BENCHMARKS = (
    *("accuracy", "checkpoint", "dataloader", "embedding_bags", "gpu.estimate", "gpu.graph", "gpu.kernels", "inference", "large", "large_turns"),
    *(
        "metrics",
        "observation",
        "optimizers",
        "preproc",
        "preproc_spark",
        "published",
        "publishing",
        "raw_rows",
        "replicas",
        "scaling",
        "serving",
        "small_logs",
        "small_sample",
    ),
    *("startup", "table_logs", "train_step", "whole_run"),
)
PROGRAMS = ("dcnv2.py", "deepfm.py", "dlrm.py", "finalmlp.py", "fm.py", "main.py", "wide_and_deep.py")
FILES = (
    *("demo", "elastic", "faults", "install", "mutants", "notebook", "serve", "serving_demo", "test", "two_hosts", "wide_and_deep_demo"),
    *(
        "spark_gpu.conf",
        "evaluating_benchmark.sh",
        "keepalive.sh",
        "memscript.sh",
        "preproc.sh",
        "preproc_benchmark.sh",
        "training_benchmark.sh",
        "training_full.sh",
    ),
)
SHELL = (
    *("preproc/spark_submit.py", "preproc/prepare_dataset.sh", "preproc/run_spark.sh", "preproc/verify_criteo_downloaded.sh", "slurm_multinode.sh"),
    *("preproc/run_spark_cpu.sh", "preproc/spark_data_utils.py"),
)
NAMES = (
    "dataloading.feature_spec.Categorical",
    "dataloading.feature_spec.FeatureSpec",
    "dataloading.tf_raw.TfRawWriter",
    "dlrm.load",
    "dlrm.run_command",
    "dlrm.train",
    "run.command.do",
    "serving.backend.Backend",
    "utils.errors.UserError",
)
FLAGS = {"batch_size": 128, "valid_batch_size": 512, "optimizer": "adam", "learning_rate": 0.02, "warmup_steps": 0, "epochs": 4} | {
    "embedding_dim": 4,
    "bottom_mlp_dims": "8,4",
    "top_mlp_dims": "8,1",
}
# Runs a command as if the modules that its first argument names were not installed.
WITH_FEW_PACKAGES = """
import runpy, sys
left_out = set(sys.argv.pop(1).split(","))
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in left_out:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refusing())
module = sys.argv[1]
sys.argv[0:2] = [module]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *map(ROOT.joinpath, PROGRAMS)]


def documented(pattern):
    return {found for page in pages() for found in re.findall(pattern, page.read_text())}


def test_documented_names_are_listed():
    modules = documented(r"python3? -m ((?:dataloading|preproc|serving|benchmarks)[\w.]*\w)")
    assert modules <= {*WITH_HELP, *WITHOUT_HELP, *(f"benchmarks.{name}" for name in BENCHMARKS)}
    assert len(modules) > 25
    names = documented(r"`((?:dataloading|preproc|serving|run|training|model|utils)\.\w+\.[A-Za-z]\w*)`")
    assert names <= set(NAMES) and len(names) >= 3


def test_modules_are_commands():
    with ThreadPoolExecutor(2) as pool:
        words = [[sys.executable, "-m", name, "--help"] for name in WITH_HELP] + [[sys.executable, name, "--help"] for name in PROGRAMS]
        ended = list(pool.map(lambda command: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False), words))
    for command, one in zip(words, ended, strict=True):
        assert one.returncode == 0 and one.stdout.startswith("usage: ") and not one.stderr, (command, one.stderr)
    for name in (*WITHOUT_HELP, *(f"benchmarks.{name}" for name in BENCHMARKS)):
        assert find_spec(name) or find_spec(f"{name}.__main__"), name
        assert '__name__ == "__main__"' in Path(find_spec(name).origin).read_text() or find_spec(f"{name}.__main__"), name


def test_scripts_exist():
    for name in (*(f"scripts/{name}" for name in FILES), *SHELL):
        assert (ROOT / name).is_file() and (os.access(ROOT / name, os.X_OK) or name.endswith((".conf", "keepalive.sh", ".py"))), name
    for name in ("evaluating_benchmark.sh", "preproc.sh", "spark_gpu.conf"):
        assert (ROOT / "scripts" / name).stat().st_size


@pytest.mark.parametrize("name", NAMES)
def test_python_names(name):
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_exported_error_class_is_the_one_raised():
    """The documented module exports the very class of error that a call raises."""
    with pytest.raises(UserError, match="no such"):
        dlrm.load(ROOT / "nowhere")


def copied_folders(dockerfile):
    """Return the files that an image copies, and the distributions that it installs."""
    lines = re.sub(r"\\\n", " ", (ROOT / dockerfile).read_text()).splitlines()
    places = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    (installed,) = (re.findall(r"'\^\(([\w|]+)\)=='", line)[0].split("|") for line in lines if "grep -E" in line)
    return [place for some in places for place in some if not place.startswith("requirements")], installed


def without(installed):
    """Return the modules of the packages that requirements.txt pins and that are not installed."""
    pinned = {name.lower() for name in re.findall(r"^([\w-]+)==", (ROOT / "requirements.txt").read_text(), re.M)}
    names = {"tensorflow": ["tensorflow", "keras"] if "keras" not in installed else ["tensorflow"], "pyyaml": ["yaml"]}
    given = {one.lower() for one in installed}
    return sorted({module for name in pinned - given for module in names.get(name, [name.replace("-", "_")])} | {"horovod"})


@pytest.mark.parametrize("dockerfile", ["Dockerfile-preproc", "Dockerfile_spark"])
def test_images_have_the_packages_that_their_commands_import(dockerfile, tmp_path):
    places, installed = copied_folders(dockerfile)
    assert len(places) >= 4 and len(installed) >= 5
    for place in places:
        files = subprocess.run(["git", "ls-files", place], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    (tmp_path / "log.csv").write_text("label,user,price\n" + "".join(f"{i % 2},u{i % 7},{i}\n" for i in range(40)))
    table = ["--train", "log.csv", "--test", "log.csv", "--categorical", "user", "--numerical", "price", "--label", "label", "--dst", "data"]
    commands = [["preproc.table", *table], *([f"preproc.{name}", "--help"] for name in ("criteo", "table", "outbrain"))]
    if "tensorflow" in installed:
        commands.append(["dataloading.transcribe", "--help"])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tmp_path)}
    for words in commands:
        command = [sys.executable, "-c", WITH_FEW_PACKAGES, ",".join(without(installed)), *words]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, (words, ended.stderr)
    assert (tmp_path / "data/feature_spec.yaml").is_file()


@pytest.fixture
def before(tmp_path):
    """Unpack the files that older commits wrote."""
    with tarfile.open(Path(__file__).parent / "fixtures/written_before.tar.gz") as archive:
        unpack(archive, tmp_path)
    return tmp_path / "written"


def scores_of(model, before):
    return model.score_raw(pl.read_parquet(before / "rows.parquet").drop("score", "score_after_all_steps"))


def expected_of(before, column="score"):
    return pl.read_parquet(before / "rows.parquet")[column].to_numpy()


@pytest.mark.parametrize("folder", ["checkpoint", "repository/dlrm/1/checkpoint", "exported/dlrm/1/checkpoint"])
def test_an_older_model_scores_its_raw_rows(before, folder):
    for mmap in (False, True):
        found = scores_of(dlrm.load(before / folder, mmap=mmap, cpu=True), before)
        np.testing.assert_allclose(found, expected_of(before), rtol=0, atol=2e-7)


def test_an_older_run_is_continued(before):
    folder = before / "checkpoint"
    dlrm.train(dataset_path=str(before / "data"), save_checkpoint_path=str(folder), resume="auto", cpu=True, log_path="", **FLAGS)
    model = dlrm.load(folder, cpu=True)
    assert model.step == 16
    np.testing.assert_allclose(scores_of(model, before), expected_of(before, "score_after_all_steps"), rtol=0, atol=1e-5)


def here(repository):
    """Make a repository written elsewhere usable here: let its `config.pbtxt` name this project and this environment."""
    made = subprocess.run([sys.executable, "-m", "serving.stub_environment"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in repository.rglob("config.pbtxt"):
        text = re.sub(r'(EXECUTION_ENV_PATH" value: { string_value: )"[^"]*"', rf'\1"{made.split()[-1]}"', path.read_text())
        path.write_text(re.sub(r'(PROJECT_PATH" value: { string_value: )"[^"]*"', rf'\1"{ROOT}"', text))
    return repository


@contextlib.contextmanager
def served(repository):
    """Serve a repository; yield the first line of `scripts/serve` that says it is ready, or its error."""
    if find_spec("tritonclient") is None:
        left_out("tritonclient cannot be imported; ./scripts/install --serving")
    ports = [word for name in ("http", "grpc", "metrics") for word in (f"--{name}_port", "0")]
    command = ["scripts/serve", str(here(repository)), *ports, "--exit_seconds", "2", "--ready_seconds", "400"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield next((line for line in process.stdout if line.startswith(("ready", "serve: error"))), "")
        finally:
            process.terminate()


def test_an_older_export_is_served(before):
    with served(before / "exported") as said:
        from tritonclient import grpc

        client = grpc.InferenceServerClient(re.search(r"grpc://(\S+),", said)[1])
        tensors, rows = [], pl.read_parquet(before / "rows.parquet")
        for one in client.get_model_metadata("dlrm").inputs:
            column = rows[one.name]
            numbers = one.datatype == "FP32"
            values = (
                column.cast(pl.Float32).fill_null(float("nan")).to_numpy()
                if numbers
                else np.array([(text or "").encode() for text in column], object)
            )
            tensors.append(grpc.InferInput(one.name, [rows.height, 1], one.datatype))
            tensors[-1].set_data_from_numpy(values[:, np.newaxis])
        found = client.infer("dlrm", tensors).as_numpy("probability")[:, 0]
        client.close()
    np.testing.assert_allclose(found, expected_of(before), rtol=0, atol=2e-7)


def test_export_without_rows_is_a_one_line_error(before):
    """A repository that commit 9d7037b wrote has no rows, so that its answers cannot be checked here."""
    with served(before / "repository") as said:
        assert said.startswith("serve: error: ") and "rows.npz: is missing" in said and "export the model again" in said


def test_copied_model_imports_one_name_of_the_project(before):
    for repository in ("repository", "exported"):
        tree = ast.parse((before / repository / "dlrm/1/model.py").read_text())
        named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and str(node.value).startswith("serving.")}
        assert {name for name in named if " " not in name} == {"serving.backend"}
