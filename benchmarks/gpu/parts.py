"""The parts of the first run on a GPU: commands with their time limits, and the small sizes of a dry run without one."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PYTHON, ROOT = sys.executable, Path(__file__).parents[2]


class Command(NamedTuple):
    """A command; `log` is the file in which `dlrm.py` writes its figures, None where the output ends with them."""

    name: str
    words: tuple[str, ...]
    limit_s: int
    environment: Mapping[str, str] = {}
    log: Path | None = None


@dataclass(frozen=True)
class Sizes:
    """The sizes of all parts."""

    variant: str = "criteo_t15_synthetic"
    batches: int = 64  # training batches of the stored dataset
    steps: int = 200
    warmup: int = 50
    batch: int = 65536
    table_rows: int = 20_971_520  # 10 GiB
    table_width: int = 128
    product: int = 8192
    step_batch: int = 4096
    step_rows: int = 100_000
    optimizers: str = "sgd,adagrad,rowwise_adagrad,adam,ftrl,rmsprop"
    dtypes: str = "float32,float16,bfloat16"
    inference: str = "1,4096,65536"
    alone: str = "t15"  # tables of the step alone
    flags: tuple[str, ...] = ()


DRY = Sizes(
    variant="small_synthetic", batches=4, steps=6, warmup=2, batch=256, table_rows=2000, table_width=8, product=64, step_batch=64, step_rows=50,
    optimizers="sgd,adam", dtypes="float32", inference="1,16", alone="50,20",
    flags=("--embedding_dim", "8", "--bottom_mlp_dims", "16,8", "--top_mlp_dims", "16,1"),
)  # fmt: skip


def parts(out: Path, sizes: Sizes) -> Iterator[Command]:
    """Yield all parts, the most informative first, since time on a borrowed device is limited."""
    yield from _device(out, sizes)
    yield from _one_step(out, sizes)
    yield from _dataset(out, sizes)
    yield _train("train", out, sizes, 300, "--profiler_start_step", str(sizes.steps * 3 // 4))
    yield from _checkpoint(out, sizes)
    yield from _ablations(out, sizes)
    yield _launched("train_by_horovodrun", _train("", out, sizes, 240))
    asynchronous = {"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}
    yield _launched("train_by_horovodrun_async", _train("", out, sizes, 180))._replace(environment=asynchronous)
    yield _train("train_adam", out, sizes, 300, "--optimizer", "adam", "--learning_rate", "0.001")
    yield _train("train_hosted", out, sizes, 240, "--cpu_offloading_threshold_gb", "1")


def _probe(name: str, limit_s: int, part: str | None = None, environment: Mapping[str, str] | None = None, **values) -> Command:
    words = (PYTHON, "-m", "benchmarks.gpu.probes", name, *(f"{key}={value}" for key, value in values.items()))
    return Command(part or name, words, limit_s, environment or {})


def _device(out: Path, sizes: Sizes) -> Iterator[Command]:
    yield _probe("device", 60)
    yield _probe("products", 120, size=sizes.product)
    yield _probe("host_memory", 60)
    yield _probe("rows", 90, "rows_int64", count=sizes.table_rows, width=sizes.table_width, dtype="int64")  # int32 ends in an illegal access
    yield _probe("padding", 120, batch=sizes.batch)


def _one_step(out: Path, sizes: Sizes) -> Iterator[Command]:
    values = {"batch": sizes.step_batch, "rows": sizes.step_rows, "optimizers": sizes.optimizers, "dtypes": sizes.dtypes}
    for device, environment in (("GPU", {}), ("CPU", {"CUDA_VISIBLE_DEVICES": "-1"})):
        yield _probe("steps", 360, f"steps_{device}", environment, **values, path=out / f"steps_{device}.npz", device=device)
    yield _probe("step_alone", 240, batch=sizes.batch, rows=sizes.alone, dtypes=sizes.dtypes, count=sizes.steps)
    yield _probe("compare", 60, "steps_compared", first=out / "steps_GPU.npz", second=out / "steps_CPU.npz")


def _dataset(out: Path, sizes: Sizes) -> Iterator[Command]:
    spec = out / "spec" / "feature_spec.yaml"
    yield Command("specification", (PYTHON, "-m", "dataloading.generate_feature_spec", "--variant", sizes.variant, "--dst", str(spec)), 30)
    flags = ("--src_dataset_type", "synthetic", "--src_dataset_path", str(spec.parent), "--dst_dataset_path", str(out / "dataset"))
    counts = ("--max_batches_train", str(sizes.batches), "--max_batches_test", "4", "--src_batch_size", str(sizes.batch))
    yield Command("dataset", (PYTHON, "-m", "dataloading.transcribe", *flags, *counts), 240)


def _dlrm(name: str, out: Path, sizes: Sizes, limit_s: int, *flags: str) -> Command:
    log = out / f"{name or 'launched'}.log.json"
    words = ("--dataset_path", str(out / "dataset"), "--log_path", str(log), *sizes.flags, *flags)
    return Command(name, (PYTHON, str(ROOT / "dlrm.py"), *words), limit_s, log=log)


def _train(name: str, out: Path, sizes: Sizes, limit_s: int, *flags: str, fast: tuple[str, ...] = ("--amp", "--xla")) -> Command:
    steps = ("--max_steps", str(sizes.steps), "--epochs", "1000", "--evals_per_epoch", "0", "--print_freq", "50")
    batch = ("--batch_size", str(sizes.batch), "--benchmark_warmup_steps", str(sizes.warmup))
    return _dlrm(name, out, sizes, limit_s, *batch, *steps, *fast, *flags)


def _launched(name: str, command: Command) -> Command:
    launcher = str(Path(PYTHON).with_name("horovodrun"))
    return command._replace(name=name, words=(launcher, "-np", "1", *command.words))


def _checkpoint(out: Path, sizes: Sizes) -> Iterator[Command]:
    saved, batch = str(out / "checkpoint"), ("--valid_batch_size", str(sizes.batch))
    yield _train("train_and_save", out, sizes, 300, "--save_checkpoint_path", saved)
    yield _dlrm("eval", out, sizes, 180, *batch, "--mode", "eval", "--amp", "--xla", "--restore_checkpoint_path", saved)
    yield _dlrm("eval_on_the_cpu", out, sizes, 240, *batch, "--mode", "eval", "--cpu", "--restore_checkpoint_path", saved)
    predictions = ("--predictions_path", str(out / "predictions.parquet"))
    yield _dlrm("predict", out, sizes, 180, *batch, "--mode", "predict", "--amp", "--restore_checkpoint_path", saved, *predictions)
    sizes_of = ("--inference_benchmark_batch_sizes", sizes.inference)
    yield _dlrm("inference", out, sizes, 180, "--mode", "inference", "--amp", "--xla", "--restore_checkpoint_path", saved, *sizes_of)


def _ablations(out: Path, sizes: Sizes) -> Iterator[Command]:
    yield _train("train_8_slices", out, sizes, 180, "--gradient_slices", "8")
    yield _train("train_without_xla", out, sizes, 180, fast=("--amp",))
    yield _train("train_bfloat16", out, sizes, 180, "--amp_dtype", "bfloat16")
    yield _train("train_float32", out, sizes, 180, fast=("--xla",))
    uniform = ("--dataset_type", "synthetic", "--synthetic_dataset_train_batches", "32", "--synthetic_dataset_valid_batches", "1")
    yield _train("train_26_small_tables", out, sizes, 180, *uniform)
