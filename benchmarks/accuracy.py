"""Compare the accuracy of --amp with that of float32: `dlrm.py`, several seeds, data whose labels depend on all features.

  python -m benchmarks.accuracy
  python -m benchmarks.accuracy --precisions float32,bfloat16 --num_rounds 10

All runs use one dataset. In round i every precision trains with --seed i, so that the compared runs start from the same weights and see the same
batches. The best possible AUC is known, because the labels are drawn from known probabilities. Differences are taken within a round; a mean below
about twice its standard error is noise.
"""

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from benchmarks.children import start
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch
from benchmarks.workload import check_words
from utils.config.option import option

PRECISIONS = ("float32", "bfloat16", "float16")
EXACT = "float32"
VARIANT = "small_synthetic"


@dataclass(frozen=True)
class AccuracyOptions(Options):
    """Accuracy of mixed precision."""

    QUICK: ClassVar[dict[str, Any]] = {"samples_per_file_batch": 512, "batch_size": 256, "top_mlp_dims": (16, 1), "embedding_dim": 8}

    precisions: tuple[str, ...] = option(PRECISIONS, f"precisions to compare with {EXACT}: {', '.join(PRECISIONS)}")
    samples_per_file_batch: int = option(65536, "an eighth of the number of training rows, and half of the number of test rows", unit="samples")
    batch_size: int = option(2048, "batch size", unit="samples")
    embedding_dim: int = option(16, "columns of the tables and of the bottom MLP's output", unit="columns")
    top_mlp_dims: tuple[int, ...] = option((1024, 1024, 512, 256, 1), "layer widths of the top MLP")
    learning_rate: float = option(0.002, "learning rate of Adam; rises over the first eighth of the steps, falls to 0 over the last half")
    cpu: bool = option(False, "run on the CPU even where there is a GPU")
    folder: str | None = option(None, "folder for the dataset; the default is the system's temporary folder")

    def __post_init__(self):
        super().__post_init__()
        check_words("precisions", self.precisions, PRECISIONS)

    @property
    def steps(self) -> int:
        """The number of steps of an epoch."""
        return 8 * self.samples_per_file_batch // self.batch_size


def main(chosen: AccuracyOptions, report: Report) -> None:
    """Train and print."""
    precisions = (EXACT, *(precision for precision in chosen.precisions if precision != EXACT))
    with scratch(chosen.folder, 2000 * chosen.samples_per_file_batch, "the dataset") as work:
        best = _write_dataset(chosen, work)
        results = {precision: [_train(chosen, work, precision, seed) for seed in range(chosen.num_rounds)] for precision in precisions}
    rows, figures = [], {}
    for precision, runs in results.items():
        aucs, losses = [result["auc"] for result in runs], [result["validation_loss"] for result in runs]
        apart = [mine - exact["auc"] for mine, exact in zip(aucs, results[EXACT], strict=True)]
        figures[precision] = {
            "auc": aucs,
            "log_loss": losses,
            "difference": statistics.fmean(apart),
            "standard_error": statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else None,
        }
        kept = figures[precision]
        values = (statistics.fmean(aucs), _deviation(aucs), statistics.fmean(losses), kept["difference"], kept["standard_error"])
        rows.append((precision, *("-" if value is None else f"{value:.6f}" for value in values)))
    report.figures |= {"best_possible_auc": best, "results": figures}
    columns = ["", "mean AUC", "deviation", "mean log loss", f"AUC - {EXACT}'s", "standard error"]
    report.table(f"{chosen.num_rounds} seeds, {chosen.steps} steps of {chosen.batch_size}; no model's AUC is above {best:.6f}", columns, rows)


def _deviation(values: list[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _write_dataset(chosen: AccuracyOptions, work: Path) -> float:
    """Write the dataset and return the AUC of the probabilities from which its labels were drawn."""
    start(sys.executable, "-m", "dataloading.generate_feature_spec", "--variant", VARIANT, "--dst", work / "feature_spec.yaml")
    source = ("--src_dataset_type", "synthetic", "--src_dataset_path", work, "--src_batch_size", chosen.samples_per_file_batch)
    target = ("--dst_dataset_path", work / "dataset", "--dst_dataset_type", "tf_raw")
    start(sys.executable, "-m", "dataloading.transcribe", *source, *target, "--max_batches_train", 8, "--max_batches_test", 2, "--seed", 0)
    return yaml.safe_load((work / "dataset" / "feature_spec.yaml").read_text())["metadata"]["bayes_auc"]


def _train(chosen: AccuracyOptions, work: Path, precision: str, seed: int) -> dict[str, float]:
    """Train and return the final figures of the run's log."""
    log, half = work / "log.json", chosen.steps // 2
    flags = ["--dataset_path", work / "dataset", "--log_path", log, "--seed", seed, "--batch_size", chosen.batch_size]
    flags += ["--embedding_dim", chosen.embedding_dim, "--top_mlp_dims", ",".join(map(str, chosen.top_mlp_dims))]
    flags += ["--optimizer", "adam", "--learning_rate", chosen.learning_rate, "--warmup_steps", chosen.steps // 8]
    flags += ["--decay_start_step", half, "--decay_steps", half, "--decay_power", 1]
    flags += ["--amp", "--amp_dtype", precision] if precision != EXACT else []
    start(sys.executable, "dlrm.py", *flags, *(["--cpu"] if chosen.cpu else []))
    lines = [json.loads(line.partition(" ")[2]) for line in log.read_text().splitlines()]
    return [line["data"] for line in lines if line.get("step") == []][-1]


if __name__ == "__main__":
    sys.exit(run(AccuracyOptions, main, __doc__))
