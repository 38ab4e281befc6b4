"""Measure training of tables larger than memory: `--table_storage lazy` beside tables in memory.

  python -m benchmarks.large
  python -m benchmarks.large --parts t3,t0 --folder /where/2/GB/are/free

Each part runs dlrm.py as a user does, from stored synthetic data, in new processes. Its speed is taken from the log, the peak of its resident memory
from the kernel. Speeds of a round are compared with those of the same model in memory, or for t3 and t0 of t15 in memory, if that part runs, too. The
default takes 50 minutes on two processors, 19 GB of memory, and 38 GB of disk for checkpoints.

  t3, t0   the models of 22.8 and 113 billion parameters, lazy: training, evaluation, save; then the run goes on from the checkpoint
  t15      the model of 4.2 billion parameters, lazy and in memory (17 GiB): speed, seconds to build the tables, equal bits of the checkpoints
  small    26 tables of 100,000 rows, lazy and in memory, in the same way
  mlperf   MLPerf's DLRM-DCNv2: 204 million rows, 214 ids a sample, row-wise Adagrad; and the same in memory with its tables cut to fit
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.children import ROOT, answer, last_answer, start, task
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch
from benchmarks.workload import MLPERF_HOTNESS
from dataloading.feature_spec import generator_spec
from utils.config.option import option
from utils.errors import UserError

MODULE = "benchmarks.large"
LAZY = ("--table_storage", "lazy")
VARIANTS = {name: f"criteo_{name}_synthetic" for name in ("t15", "t3", "t0")}
MLPERF = "mlperf"
PARTS = ("t3", "t0", "t15", "small", MLPERF)
# The rows of MLPerf's tables: github.com/mlcommons/training, recommendation_v2
MLPERF_ROWS = (40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976, 14)
MLPERF_ROWS += (40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36)
MLPERF_MODEL = ("--interaction", "cross", "--top_mlp_dims", "1024,1024,512,256,1", "--optimizer", "rowwise_adagrad", "--learning_rate", "0.005")
_BYTES_A_SAMPLE = {MLPERF: 950}  # of a stored sample; of others 100


@dataclass(frozen=True)
class LargeOptions(Options):
    """Large tables benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "steps": 6, "batch_size": 64, "parts": "small", "cardinality": 500, "embedding_dim": 8}

    num_rounds: int = option(1, "number of rounds; medians over them are shown", unit="rounds")
    parts: str = option(",".join(PARTS), f"parts to run, separated by commas: {', '.join(PARTS)}")
    steps: int = option(2000, "training steps", unit="steps")
    batch_size: int = option(8192, "batch size", unit="samples")
    table_memory_gb: float = option(6.0, "memory for the rows of lazy tables", unit="10^9 bytes")
    mlperf_batch_size: int = option(2048, "batch size of the part mlperf, whose samples touch 26 times as many rows", unit="samples")
    mlperf_steps: int = option(500, "training steps of the part mlperf", unit="steps")
    mlperf_memory_gb: float = option(16.0, "memory for the rows of lazy tables in the part mlperf", unit="10^9 bytes")
    mlperf_most_rows: int = option(5_000_000, "rows to which the tables of the part mlperf are cut to fit the memory", unit="rows")
    cardinality: int = option(100_000, "rows of each table of the part small", unit="rows")
    embedding_dim: int = option(128, "columns of each table of the part small", unit="columns")
    folder: str | None = option(None, "folder for data and checkpoints; the default is the system's temporary folder")

    def chosen(self) -> list[str]:
        """Return the parts to run. Raises UserError for an unknown one."""
        return parts_of(self.parts, PARTS)


def parts_of(given: str, known: Sequence[str]) -> list[str]:
    """Return the parts that `--parts` names. Raises UserError for one that is not known."""
    names = [name.strip() for name in given.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--parts: {unknown[0]!r}, expected some of {', '.join(known)}")
    return names


def main(chosen: LargeOptions, report: Report) -> None:
    """Measure and print."""
    parts = chosen.chosen()
    with scratch(chosen.folder, max(_bytes_on_disk(chosen, part) for part in parts), "data and checkpoints") as work:
        found = report.figures["parts"] = {part: [] for part in parts}
        for _ in range(chosen.num_rounds):
            for part in parts:
                found[part].append(_part(chosen, work, part))
    sizes = {part: f"batch {_batch_size(chosen, part)}, {_steps(chosen, part)} steps" for part in parts}
    common = sizes[parts[0]]
    others = "".join(f"; {part}: {size}" for part, size in sizes.items() if size != common)
    columns = ["", "samples/s", "of in memory", "peak GiB", "rows touched", "seconds in all", "seconds to build"]
    report.table(f"--amp, {common}{others}; medians of {chosen.num_rounds} rounds", columns, _rows(found))


def _steps(chosen: LargeOptions, part: str) -> int:
    return chosen.mlperf_steps if part == MLPERF else chosen.steps


def _batch_size(chosen: LargeOptions, part: str) -> int:
    return chosen.mlperf_batch_size if part == MLPERF else chosen.batch_size


def _bytes_on_disk(chosen: LargeOptions, part: str) -> int:
    """Return what a part's data and checkpoints take at most."""
    of_tables = {MLPERF: int(2e9 * chosen.mlperf_memory_gb), "t15": 36 * 10**9}
    return of_tables.get(part, 0) + bytes_of_samples(chosen, part)


def bytes_of_samples(chosen: LargeOptions, part: str) -> int:
    """Return the bytes of a part's data."""
    return _BYTES_A_SAMPLE.get(part, 100) * _steps(chosen, part) * _batch_size(chosen, part)


def _rows(parts: dict[str, list[dict[str, dict]]]) -> list[tuple]:
    """Return the rows of the table. Speeds are compared with those of the part in memory within a round; t3 and t0, which have none, with t15's."""
    rows: list[tuple] = []
    for part, made in parts.items():
        others = made if len(made[0]) == 2 and "resumed" not in made[0] else parts.get("t15")
        for name in made[0]:
            ratio = None
            if others:
                ratio = statistics.median(
                    run[name]["throughput"] / list(other.values())[-1]["throughput"] for run, other in zip(made, others, strict=True)
                )
            columns = ("peak_gib", "rows", "seconds", "build_s")
            rest = (_middle([run[name].get(column) for run in made]) for column in columns)
            rows.append((f"{part}, {name}", _middle([run[name]["throughput"] for run in made]), ratio, *rest))
    return rows


def _middle(values: list) -> float | None:
    return None if None in values else statistics.median(values)


def _part(chosen: LargeOptions, work: Path, part: str) -> dict[str, dict]:
    """Run a part in a folder that is removed then; return the figures of its runs by name, the one in memory last, if there is one."""
    with scratch(str(work), 0, part) as own:
        return _runs(chosen, own, part)


def _runs(chosen: LargeOptions, work: Path, part: str) -> dict[str, dict]:
    data, found = write_data(chosen, work, part), {}
    lazy = (*LAZY, "--table_memory_gb", chosen.table_memory_gb)
    if part in ("t3", "t0"):
        found["lazy"] = _train(chosen, part, work, data, "lazy", *lazy)
        found["resumed"] = _train(chosen, part, work, data, "lazy", *lazy, "--resume", "auto", steps=chosen.steps + chosen.steps // 10)
        return found
    if part == MLPERF:
        lazy = (*LAZY, "--table_memory_gb", chosen.mlperf_memory_gb)
        found["lazy"] = _train(chosen, part, work, data, "lazy", *MLPERF_MODEL, *lazy)
        shutil.rmtree(data)
        shutil.rmtree(work / "lazy")
        data = write_data(chosen, work / "cut", part, chosen.mlperf_most_rows)
        name = f"in memory, tables of at most {chosen.mlperf_most_rows:,} rows"
        found[name] = _train(chosen, part, work, data, "in_memory", *MLPERF_MODEL)
        return found
    lazy += ("--table_storage_above", 1) if part == "small" else ()
    for name, flags in (("lazy", lazy), ("in memory", ())):
        found[name] = _train(chosen, part, work, data, name.replace(" ", "_"), *flags) | _built(chosen, part, data, flags)
    if differing := last_answer(MODULE, compare=[str(work / "lazy"), str(work / "in_memory")]):
        raise RuntimeError(f"{part}: the checkpoints differ in {', '.join(differing)}")
    return found


def write_data(chosen: LargeOptions, work: Path, part: str, most_rows: int | None = None) -> Path:
    """Write a part's dataset, with at most so many rows a table, and return its folder."""
    spec, samples = work / "spec", _steps(chosen, part) * 11 // 10
    spec.mkdir(parents=True)
    if part == MLPERF:
        rows = [min(count, most_rows or count) for count in MLPERF_ROWS]
        text = generator_spec(rows, 13, 1.1, hotness=MLPERF_HOTNESS).to_yaml()
        (spec / "feature_spec.yaml").write_text(text)
    elif part in VARIANTS:
        start(sys.executable, "-m", "dataloading.generate_feature_spec", "--variant", VARIANTS[part], "--dst", spec / "feature_spec.yaml")
    else:
        text = generator_spec((chosen.cardinality,) * 26, 13, 1.45).to_yaml()
        (spec / "feature_spec.yaml").write_text(text)
    counts = ("--max_batches_train", samples, "--max_batches_test", max(samples // 20, 1), "--src_batch_size", _batch_size(chosen, part))
    source = ("--src_dataset_type", "synthetic", "--src_dataset_path", spec)
    start(sys.executable, "-m", "dataloading.transcribe", *source, "--dst_dataset_path", work / "data", *counts)
    return work / "data"


def flags_of(chosen: LargeOptions, part: str, data: Path, flags: tuple[object, ...]) -> list[object]:
    """Return the flags of a part's runs, then those given; the learning rate is 1 where none is given."""
    dims = ("--embedding_dim", chosen.embedding_dim, "--bottom_mlp_dims", f"512,256,{chosen.embedding_dim}") if part == "small" else ()
    rate = () if "--learning_rate" in flags else ("--learning_rate", 1)
    return ["--cpu", "--amp", "--dataset_path", data, "--batch_size", _batch_size(chosen, part), "--warmup_steps", 0, *rate, *dims, *flags]


def _train(chosen: LargeOptions, part: str, work: Path, data: Path, name: str, *flags: object, steps: int | None = None) -> dict[str, Any]:
    """Run dlrm.py; return its throughput, the peak of its memory, its seconds, and the rows that it has touched."""
    steps = steps or _steps(chosen, part)
    log, warmup = work / f"{name}.log", min(500, steps // 4)
    words = ["dlrm.py", *flags_of(chosen, part, data, flags), "--max_steps", steps, "--save_checkpoint_path", work / name]
    command = [sys.executable, *words, "--log_path", log, "--benchmark_warmup_steps", warmup]
    begun = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(map(str, words))} failed:\n{errors[-2000:]}")
    lines = [json.loads(line.partition(" ")[2]) for line in log.read_text().splitlines()]
    last = next(line["data"] for line in reversed(lines) if line.get("step") == [])
    return {
        "throughput": last["throughput"],
        "peak_gib": used.ru_maxrss * 1024 / 2**30,
        "seconds": time.perf_counter() - begun,
        "rows": _touched(work / name),
    }


def _touched(folder: Path) -> int | None:
    """Return the rows that a checkpoint stores of lazy tables; None where it has none."""
    return last_answer(MODULE, count=str(folder))


def _built(chosen: LargeOptions, part: str, data: Path, flags: tuple[object, ...]) -> dict[str, float]:
    return {"build_s": last_answer(MODULE, build=list(map(str, flags_of(chosen, part, data, flags))))}


# In a process of its own --------------------------------------------------------------------------------------------------


def child(compare: list[str] | None = None, count: str | None = None, build: list[str] | None = None) -> None:
    """Answer with the arrays in which two checkpoints differ, with the touched rows of one, or with the seconds that a run's tables take to build."""
    if build is not None:
        answer(_build_seconds(build))
        return
    from utils.checkpoint.reading import Checkpoint

    if count is not None:
        arrays = Checkpoint(count).manifest["arrays"]
        found = [described["touched"] for name, described in arrays.items() if name.endswith("/weights") and "touched" in described]
        answer(sum(found) if found else None)
        return
    one, other = (Checkpoint(path) for path in compare)
    answer([name for name in one.names("") if not _equal(one, other, name)])


def _equal(one: Any, other: Any, name: str) -> bool:
    import numpy as np

    blocks = zip(_by_rows(one.read_rows(name)), _by_rows(other.read_rows(name)), strict=True)
    return all(np.array_equal(mine, yours) for mine, yours in blocks)


def _by_rows(blocks: Any, rows: int = 1 << 14) -> Any:
    """Yield blocks of equal height, however they were stored."""
    import numpy as np

    rest = None
    for _, values in blocks:
        rest = values if rest is None else np.concatenate([rest, values])
        whole = len(rest) // rows * rows
        for i in range(0, whole, rows):
            yield rest[i : i + rows]
        rest = rest[whole:]
    if rest is not None and len(rest):
        yield rest


def _build_seconds(flags: list[str]) -> float:
    """Return the seconds to build the model of a run, its tables above all."""
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    from run.prepare import prepared
    from run.weights import model_of
    from utils.dialects.command_line import parse
    from utils.distributed import meet

    config = parse([*flags, "--log_path", ""], "")
    with prepared(config, meet(), "dlrm.py") as found:
        begun = time.perf_counter()
        model_of(found)
        return time.perf_counter() - begun


if __name__ == "__main__":
    if (given := task()) is not None:
        child(**given)
    else:
        sys.exit(run(LargeOptions, main, __doc__))
