"""docs/moving.md: every command in its tables that a CPU can run is run as it stands there, with further flags that make it small.

Those of one Python process run here, where TensorFlow is loaded already.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers.commands import run, run_here
from tests.left_out import starts
from tests.moving import data
from tests.moving.tables import ROOT, rows

SMALL = "--cpu --embedding_dim 4 --bottom_mlp_dims 8,4 --top_mlp_dims 8,1 --log_path LOG"
SIZES = f"{SMALL} --batch_size 256 --valid_batch_size 512"
PYTORCH = "--base_device cpu --embedding_dim 4 --bottom_mlp_sizes 8,4 --top_mlp_sizes 8,1 --batch_size 256 --test_batch_size 512 --log_path LOG"
SCORE = "--cpu --log_path LOG"
TRAINED = ("throughput", "mean_step_time_ms", "auc", "validation_loss", "train_loss", "samples")
TRAINED_PYTORCH = ("best_auc", "best_epoch", "average_train_throughput", "average_test_throughput")
TESTED_PYTORCH = ("auc", "avg_inference_latency", "average_test_throughput")
EVALUATED = ("auc", "test_loss", "samples")
INFERRED = ("mean_inference_throughput", "mean_inference_latency", *(f"p{p}_inference_latency" for p in (90, 95, 99)), "auc")
RAW = tuple(f"DATASET/{name}" for name in ("feature_spec.yaml", "train/label.bin", "train/numerical.bin", "train/cat_0.bin", "test/label.bin"))
RECORDS = tuple(
    f"RECORDS/{name}" for name in ("feature_spec.yaml", "train/length.json", "train/label/format.json", "test/categorical_2/data_0.tfrecords")
)
STORED = ("STORED/feature_spec.yaml", "STORED/train/cat_2.bin", "STORED/test/numerical.bin")
CHECKPOINT, CHECKPOINT_OF_WIDE = ("CHECKPOINT/latest",), ("CHECKPOINT/checkpoint/latest",)
PLACES = (
    "SPLIT",
    "BINARY",
    "FACEBOOK",
    "KAGGLE",
    "CSV",
    "DATASET",
    "RECORDS",
    "SPEC",
    "CHECKPOINT",
    "STORED",
    "REPOSITORY",
    "LOG",
    "PARQUET",
    "SIZES",
    "TFRECORDS",
    "RESULTS",
)


@dataclass(frozen=True)
class Case:
    """The flags that a command is run with, and what must come out of it.

    Attributes:
        given: the function that writes what a placeholder of the command stands for; others are new paths.
        flags: further flags, which make it small.
        keys: keys of the log's last line.
        files: files that it writes.
        says: texts in its output.
        code: its exit code.
    """

    given: Mapping[str, Callable[[Path], Path]] = field(default_factory=dict)
    flags: str = ""
    keys: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    code: int = 0


WIDE = "--cpu --deep_hidden_units 16 8 --embedding_dim 4 --results_dir RESULTS --model_dir CHECKPOINT --affinity disabled"
RECORDS_OF_WIDE = "--train_data_pattern TFRECORDS/train/part* --eval_data_pattern TFRECORDS/eval/part*"
ON_FIRST = f"{WIDE} --global_batch_size 256 --eval_batch_size 512 {RECORDS_OF_WIDE}"
FEW_EPOCHS = "--num_epochs 2 --deep_warmup_epochs 1"
ON_PARQUET = (
    "--cpu --deep_hidden_units 16 8 --results_dir RESULTS --model_dir CHECKPOINT --affinity disabled --global_batch_size 128 --eval_batch_size 128"
)
FIRST, CURRENT = ("binary_accuracy_val", "auc_val", "loss_val", "streaming_map_val"), ("loss_val", "streaming_map_val", "auc_roc")


def trained_wide(folder: Path) -> Path:
    """Train a small Wide & Deep on the records of `data.write_tfrecords`; the folder is that of --model_dir."""
    return _run_main(folder, data.write_tfrecords(folder.with_name("records-of-wide")), f"{ON_FIRST} {FEW_EPOCHS}")


def trained_current(folder: Path) -> Path:
    """Train a small Wide & Deep on the files of `data.write_parquet`."""
    return _run_main(
        folder, data.write_parquet(folder.with_name("parquet-of-wide")), f"--dataset_path TFRECORDS {ON_PARQUET} {FEW_EPOCHS} --embedding_dim 4"
    )


def _run_main(folder: Path, dataset: Path, flags: str) -> Path:
    flags = flags.replace("RESULTS", str(folder.with_name("results"))).replace("CHECKPOINT", str(folder)).replace("TFRECORDS", str(dataset))
    done = run_here(ROOT / "main.py", *flags.split(), cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


def trained(folder: Path) -> Path:
    """Train a small model on the dataset of `data.write_raw`."""
    raw = data.write_raw(folder.with_name("raw-of-checkpoint"))
    flags = f"--dataset_path {raw} {SIZES} --save_checkpoint_path {folder}".replace("LOG", os.devnull)
    done = run_here(ROOT / "dlrm.py", *flags.split(), cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(raw)
    return folder


ON_SPLIT, ON_RAW, ON_RECORDS = {"SPLIT": data.write_split}, {"DATASET": data.write_raw}, {"RECORDS": data.write_records}
MAIN = "python -m dlrm.scripts.main --mode"
HOROVODRUN = "--mpi-args=--oversubscribe numactl --interleave=all -- python -u dlrm.py"
DEPLOY = "python -m deployment.deploy --checkpoint-dir CHECKPOINT --model-repository-path REPOSITORY --model-name dlrm"
DEPLOYED = Case({"CHECKPOINT": trained}, "--cpu", files=("REPOSITORY/dlrm/config.pbtxt",))
CASES = {
    # NVIDIA's DLRM for PyTorch
    f"{MAIN} train --dataset SPLIT --save_checkpoint_path CHECKPOINT": Case(ON_SPLIT, PYTORCH, TRAINED_PYTORCH, CHECKPOINT),
    f"{MAIN} train --dataset_type split --dataset SPLIT --amp --lr 20 --epochs 2 --test_freq 5": Case(ON_SPLIT, PYTORCH, TRAINED_PYTORCH),
    f"{MAIN} test --dataset SPLIT --load_checkpoint_path CHECKPOINT": Case(
        ON_SPLIT | {"CHECKPOINT": trained}, "--base_device cpu --log_path LOG", TESTED_PYTORCH
    ),
    f"{MAIN} test --dataset SPLIT": Case(ON_SPLIT, PYTORCH, TESTED_PYTORCH, says=("the initial weights are evaluated",)),
    f"{MAIN} inference_benchmark --dataset SPLIT --load_checkpoint_path CHECKPOINT --inference_benchmark_batch_sizes 1,64": Case(
        ON_SPLIT | {"CHECKPOINT": trained},
        "--base_device cpu --log_path LOG --inference_benchmark_steps 3",
        tuple(f"mean_inference_{name}_batch_{size}" for name in ("latency", "throughput") for size in (1, 64)),
    ),
    f"{MAIN} train --dataset_type synthetic_gpu --synthetic_dataset_table_sizes 100,100,100 --num_numerical_features 13": Case(
        {}, f"{PYTORCH} --synthetic_dataset_num_entries 1024 --synthetic_dataset_valid_batches 2", TRAINED_PYTORCH
    ),
    f"{MAIN} train --dataset_type synthetic_disk --synthetic_dataset_dir STORED": Case(
        {}, f"{PYTORCH} --synthetic_dataset_num_entries 1024 --synthetic_dataset_table_sizes 9,9,9", TRAINED_PYTORCH, STORED
    ),
    f"{MAIN} train --dataset_type binary --dataset BINARY": Case({"BINARY": data.write_nvidias_binary}, files=RAW),
    f"{MAIN} train --dataset_type parametric --dataset DATASET --feature_spec feature_spec.yaml": Case(ON_RAW, PYTORCH, TRAINED_PYTORCH),
    "python -m torch.distributed.launch --use_env --nproc_per_node 2 -m dlrm.scripts.dist_main --dataset SPLIT --embedding_type joint_sparse "
    "--backend nccl": Case(ON_SPLIT, PYTORCH, TRAINED_PYTORCH),
    "python -m dlrm.scripts.prepare_synthetic_dataset --synthetic_dataset_num_entries 4096 --synthetic_dataset_dir STORED": Case(
        {}, "--synthetic_dataset_batch_size 512 --synthetic_dataset_table_sizes 9,9,9", files=STORED
    ),
    "python -m dlrm.scripts.gen_csv --feature_spec_in CSV/feature_spec.yaml --output CSV --size 1000": Case(
        {"CSV": data.write_csv_spec}, files=("CSV/train.csv", "CSV/test.csv")
    ),
    "python -m dlrm.scripts.transcode --input CSV --output DATASET": Case({"CSV": data.write_csv}, files=RAW),
    # Facebook's DLRM
    "python dlrm_s_pytorch.py --data-set=terabyte --memory-map --mlperf-bin-loader --raw-data-file=FACEBOOK/day "
    "--processed-data-file=FACEBOOK/terabyte_processed.npz --max-ind-range=40000000": Case({"FACEBOOK": data.write_facebook}, files=RAW),
    "python dlrm_s_pytorch.py --data-set=kaggle --processed-data-file=KAGGLE/kaggleAdDisplayChallenge_processed.npz": Case(
        {"KAGGLE": data.write_kaggle}, files=RAW
    ),
    "python dlrm_s_pytorch.py --arch-sparse-feature-size=16 --arch-mlp-bot=13-512-256-64-16 --arch-mlp-top=512-256-1 --mini-batch-size=128 "
    "--learning-rate=0.1 --nepochs=1 --test-freq=1000": Case(ON_RAW, "--cpu --log_path LOG", TRAINED),
    # NVIDIA's DLRM and DCNv2 for TensorFlow 2
    "python -m dataloading.generate_feature_spec --variant criteo_t15_synthetic --dst SPEC/feature_spec.yaml": Case(
        files=("SPEC/feature_spec.yaml",)
    ),
    "python -m dataloading.transcribe --src_dataset_type synthetic --src_dataset_path SPEC --dst_dataset_path DATASET --max_batches_train 10 "
    "--max_batches_test 2 --dst_dataset_type tf_raw": Case({"SPEC": data.write_spec}, "--src_batch_size 64", files=RAW),
    "python -m dataloading.transcribe --src_dataset_type tf_raw --src_dataset_path DATASET --dst_dataset_path RECORDS --dst_prebatch_size 512 "
    "--src_batch_size 512": Case(ON_RAW, files=RECORDS),
    "python -m dataloading.transcribe --src_dataset_type split_tfrecords --src_dataset_path RECORDS --dst_dataset_path DATASET --dst_dataset_type "
    "tf_raw": Case(ON_RECORDS, files=RAW),
    "python -m dataloading.transcode --input CSV --output DATASET --chunk_size 65536": Case({"CSV": data.write_csv}, files=RAW),
    "python -m dataloading.gen_csv --feature_spec_in CSV/feature_spec.yaml --output CSV --size 1000": Case(
        {"CSV": data.write_csv_spec}, files=("CSV/train.csv", "CSV/test.csv")
    ),
    "python -m dataloading.prepare_synthetic_dataset --synthetic_dataset_num_entries 4096 --synthetic_dataset_batch_size 512 "
    "--synthetic_dataset_table_sizes 100,100,100 --synthetic_dataset_dir STORED": Case(files=STORED),
    "python -m dataloading.dataloader_benchmark --dataset_path DATASET --dataset_type tf_raw --batch_size 512 --max_batches 5 --warmup_steps 2": Case(
        ON_RAW,
        says=(
            "Creating the pipelines",
            "Benchmarking...",
            "warmup step: 1",
            "batch: 4",
            "Benchmark done",
            "Batches per second: ",
            "Samples per second: ",
        ),
    ),
    f"horovodrun -np 1 -H localhost:1 {HOROVODRUN} --dataset_path DATASET --amp --xla --save_checkpoint_path CHECKPOINT": Case(
        ON_RAW, SIZES, TRAINED, CHECKPOINT
    ),
    f"horovodrun -np 2 -H localhost:2 {HOROVODRUN} --dataset_path DATASET --amp --xla": Case(ON_RAW, SIZES, TRAINED),
    "python -u dlrm.py --dataset_path RECORDS --dataset_type split_tfrecords --batch_size 512 --valid_batch_size 512 --amp --xla": Case(
        ON_RECORDS, SMALL, TRAINED
    ),
    "python -u dlrm.py --dataset_path DATASET --amp --restore_checkpoint_path CHECKPOINT --mode eval": Case(
        ON_RAW | {"CHECKPOINT": trained}, SCORE, EVALUATED
    ),
    "python -u dlrm.py --dataset_path DATASET --amp --restore_checkpoint_path CHECKPOINT --mode inference": Case(
        ON_RAW | {"CHECKPOINT": trained}, f"{SCORE} --max_steps 3", INFERRED
    ),
    "python -u dlrm.py --dataset_type synthetic --synthetic_dataset_train_batches 10 --synthetic_dataset_valid_batches 2 "
    "--synthetic_dataset_cardinalities 100,100,100": Case({}, SIZES, TRAINED),
    "python -u dcnv2.py --dataset_path DATASET --amp --xla --save_checkpoint_path CHECKPOINT": Case(ON_RAW, SIZES, TRAINED, CHECKPOINT),
    f"{DEPLOY} --dense-format tf-savedmodel --sparse-format tf-savedmodel --model-precision fp32": DEPLOYED,
    f"{DEPLOY} --dense-format trt --sparse-format hps --model-precision fp16": DEPLOYED,
    f"{DEPLOY} --dense-format tf-savedmodel --sparse-format tf-savedmodel --model-precision fp32 --monolithic": DEPLOYED,
}
ON_TFRECORDS, WITH_PARQUET = {"TFRECORDS": data.write_tfrecords}, {"PARQUET": data.write_parquet}
SHORT = "--benchmark_warmup_steps 2 --benchmark_steps 5"
CASES |= {
    # NVIDIA's Wide & Deep for TensorFlow 2
    "python main.py": Case(ON_TFRECORDS, f"{ON_FIRST} {FEW_EPOCHS}", FIRST, CHECKPOINT_OF_WIDE),
    "python main.py --xla --amp": Case(ON_TFRECORDS, f"{ON_FIRST} {FEW_EPOCHS}".replace("--cpu ", ""), FIRST),
    "python main.py --evaluate --use_checkpoint": Case(ON_TFRECORDS | {"CHECKPOINT": trained_wide}, ON_FIRST, FIRST),
    "python main.py --benchmark --num_epochs 20": Case(
        ON_TFRECORDS, f"{ON_FIRST} {SHORT}", ("train_throughput",), says=("--num_epochs 20 has no effect with --benchmark",)
    ),
    "python main.py --evaluate --benchmark": Case(ON_TFRECORDS, f"{ON_FIRST} {SHORT}", ("validation_throughput",)),
    "horovodrun -np 1 sh hvd_wrapper.sh python main.py --dataset_path PARQUET --xla --amp": Case(
        WITH_PARQUET, f"{ON_PARQUET} {FEW_EPOCHS} --embedding_dim 4".replace("--cpu ", ""), CURRENT, CHECKPOINT_OF_WIDE
    ),
    "python main.py --dataset_path PARQUET --fspec_file feature_spec.yaml --embedding_sizes_file SIZES --combiner mean --num_auc_thresholds 8000 "
    "--affinity unique_interleaved": Case(
        WITH_PARQUET | {"SIZES": data.write_sizes}, f"{ON_PARQUET} {FEW_EPOCHS}".replace("--affinity disabled ", ""), CURRENT
    ),
    "python main.py --dataset_path PARQUET --disable_map_calculation --cpu": Case(
        WITH_PARQUET, f"{ON_PARQUET} {FEW_EPOCHS} --embedding_dim 4".replace("--cpu ", ""), ("loss_val", "auc_roc")
    ),
    "python main.py --dataset_path PARQUET --evaluate --use_checkpoint": Case(WITH_PARQUET | {"CHECKPOINT": trained_current}, ON_PARQUET, CURRENT),
}
# Commands that need more than this test gives them, and the test that runs each.
ELSEWHERE = {
    "python -m deployment.evaluate_accuracy --dataset_path DATASET --model_name dlrm --sparse_input_format tf-savedmodel": "deployment",  # a server
    "mpiexec --allow-run-as-root --bind-to socket -np 2 python main.py --xla --amp": "scripts/test_wide_and_deep_scripts.py",  # sockets
    "scripts/training_full.sh --gpu 1 --amp --xla": "scripts/test_wide_and_deep_scripts.py",
    "scripts/training_benchmark.sh -g 1 -a -x": "scripts/test_wide_and_deep_scripts.py",
    "scripts/evaluating_benchmark.sh --gpu 1 --bs 4096": "scripts/test_wide_and_deep_scripts.py",
    "bash scripts/preproc.sh spark 40": "scripts/test_preproc_scripts.py",  # Outbrain's raw files
    "bash scripts/preproc.sh nvtabular 40": "scripts/test_preproc_scripts.py",
    "bash scripts/preproc_benchmark.sh -m spark -t 40 -i 2": "scripts/test_preproc_scripts.py",
    "preproc/prepare_dataset.sh CPU 15": "preproc/test_prepare_dataset.py",  # Spark
    "preproc/run_spark.sh CPU LOGS OUT 15": "preproc/test_prepare_dataset.py",
    "preproc/run_spark_cpu.sh LOGS OUT 15": "preproc/test_prepare_dataset.py",
    "python preproc/spark_data_utils.py --mode generate_models --input_folder LOGS --days 0-1 --model_folder MODELS --frequency_limit "
    "15": "preproc/criteo/test_two_steps.py",
    "cmd='python -u dlrm.py …' cont=IMAGE mounts=A:B srun_flags=--mpi=pmix sbatch -N 2 slurm_multinode.sh": "scripts/test_slurm_multinode.py",
}
# Scripts that only a DGX can run: their names stand for nothing here.
NOT_HERE = {"bind.sh --cpu=exclusive -- COMMAND", "dgxa100_ccx.sh", "dgx2_config.sh", "run_spark_gpu.sh LOGS OUT 15 DGX2"}
ROWS = {row.there: row for row in rows()}


def test_every_row_is_tested():
    assert set(ROWS) == set(CASES) | set(ELSEWHERE) | NOT_HERE and len(ROWS) == len(rows())
    assert all((ROOT / "tests" / place).exists() for place in ELSEWHERE.values())


@pytest.mark.parametrize("there", sorted(NOT_HERE))
def test_script_that_is_not_here_has_a_replacement(there):
    script = there.split()[0]
    assert ROWS[there].here.startswith("not here; `") and not [path for path in ROOT.glob(f"**/{script}") if ".venv" not in path.parts]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a function that writes a copy of an input at a path; each input is made once."""
    made: dict[Callable, Path] = {}

    def copy(write, path):
        if write not in made:
            made[write] = write(tmp_path_factory.mktemp("made") / "input")
        (shutil.copytree if made[write].is_dir() else shutil.copyfile)(made[write], path)

    return copy


@pytest.fixture
def program(tmp_path):
    """Return a folder like the repository's, in which commands may write."""
    folder = tmp_path / "program"
    folder.mkdir()
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("DATASET", "CHECKPOINT"):
            (folder / path.name).symlink_to(path)
    return folder


def in_a_shell(words, folder):
    """Run a command in a child process, with the programs of this Python on the path."""
    if "horovodrun" in words:
        starts("workers")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return run(*words[1:], program=words[0], cwd=folder, env=environment)


@pytest.mark.parametrize(
    "there", CASES, ids=lambda there: f"{ROWS[there].system.split()[-1]}: {' '.join(there.split()[1:])}"[:90] if there in ROWS else there
)
def test_command_works(there, tmp_path, written, program):
    case, command = CASES[there], ROWS[there].command
    for place in PLACES:
        path = tmp_path / place.lower()
        if place in case.given:
            written(case.given[place], path)
    names = re.compile(rf"\b({'|'.join(PLACES)})\b")
    words = [names.sub(lambda found: str(tmp_path / found[0].lower()), word) for word in shlex.split(f"{command} {case.flags}")]
    alone = words[0] == "python" and "unique_interleaved" not in words  # this process stays on all its processors
    done = run_here(*words[1:], cwd=program) if alone else in_a_shell(words, program)
    said = done.stdout + done.stderr
    assert done.returncode == case.code and "Traceback" not in said, said[-2000:]
    for text in case.says:
        assert text in said
    for name in case.files:
        place, _, rest = name.partition("/")
        assert (tmp_path / place.lower() / rest).exists(), name
    if case.keys:
        log = tmp_path / "log"
        last = json.loads((log if log.exists() else tmp_path / "results" / "log.json").read_text().splitlines()[-1].removeprefix("DLLL "))
        assert last["step"] == [] and set(case.keys) <= set(last["data"]), sorted(last["data"])
