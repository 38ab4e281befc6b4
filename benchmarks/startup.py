"""Measure the time and memory of a run before its second step: importing, answering --help, building the tables, tracing and compiling.

  python -m benchmarks.startup
  python -m benchmarks.startup --scale 0.1 --num_rounds 5

Each figure is measured in a new process; every round measures all of them in turn. Memory is the process's peak (ru_maxrss), with its ratio to the
tables' size.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.children import answer, last_answer, start, task
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.rounds import timed
from benchmarks.workload import Workload, check_words, options, t15_rows
from utils.config.option import option
from utils.memory import GIB, available_bytes, check_fits

MODULE = "benchmarks.startup"
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class StartupOptions(Options):
    """Start-up benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "scale": 0.0005, "precisions": ("float32",), "xla": ("off",), "batch_size": 64}

    num_rounds: int = option(3, "number of rounds; each measures all contenders in turn, and medians over rounds are shown", unit="rounds")
    scale: float = option(1.0, "rows of the tables, in proportion to the 4.2-billion-parameter model's (15.6 GiB)")
    batch_size: int = option(8192, "batch of the first step", unit="samples")
    precisions: tuple[str, ...] = option(("float32", "bfloat16"), f"precisions of the first step, as by --amp in dlrm.py: {', '.join(PRECISIONS)}")
    xla: tuple[str, ...] = option(("off", "on"), "first steps without --xla, with it, or both: off, on")

    def __post_init__(self):
        super().__post_init__()
        check_words("precisions", self.precisions, PRECISIONS)
        check_words("xla", self.xla, ("off", "on"))


def main(chosen: StartupOptions, report: Report) -> None:
    """Measure and print."""
    size = 4 * 128 * sum(_rows(chosen.scale))
    check_fits(int(1.2 * size), f"--scale {chosen.scale}: the tables", available_bytes())
    actions: dict[str, Callable[[], dict[str, float]]] = {
        "python": lambda: {"seconds": start(sys.executable, "-c", "").seconds},
        "import tensorflow": lambda: {"seconds": start(sys.executable, "-c", "import tensorflow").seconds},
        "dlrm.py --help": lambda: {"seconds": start(sys.executable, "dlrm.py", "--help").seconds},
        "building the tables": lambda: last_answer(MODULE, kind="build", scale=chosen.scale),
    }
    for dtype in chosen.precisions:
        for xla in chosen.xla:
            name = f"first step, {dtype}{', --xla' if xla == 'on' else ''}"
            actions[name] = lambda dtype=dtype, xla=xla == "on": last_answer(MODULE, kind="step", dtype=dtype, xla=xla, batch_size=chosen.batch_size)
    if not chosen.quick:
        start(sys.executable, "-c", "import tensorflow, keras")  # reads the files into the page cache, so that the first round is like the others
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in actions}
    for _ in range(chosen.num_rounds):
        for name, action in actions.items():
            for key, value in action().items():
                figures[name].setdefault(key, []).append(value)
    medians = {name: {key: statistics.median(values) for key, values in facts.items()} for name, facts in figures.items()}
    built = medians["building the tables"]
    memory = {"of_tables": built["peak_bytes"] / size, "beyond_imports_of_tables": (built["peak_bytes"] - built["before_bytes"]) / size}
    report.figures |= {"table_bytes": size, "rounds": figures, "medians": medians, "memory": memory}
    report.table(
        f"medians of {chosen.num_rounds} new processes",
        ["", "seconds", "then a step takes", "peak memory, GiB"],
        [
            (name, facts["seconds"], facts.get("second_step"), facts["peak_bytes"] / GIB if "peak_bytes" in facts else None)
            for name, facts in medians.items()
        ],
    )
    report.say(
        f"\ntables of {size / GIB:.2f} GiB: the process's peak is {memory['of_tables']:.3f} of that, "
        f"{memory['beyond_imports_of_tables']:.3f} without what importing took ({built['before_bytes'] / GIB:.2f} GiB)"
    )


def _rows(scale: float) -> tuple[int, ...]:
    return tuple(max(int(rows * scale), 1) for rows in t15_rows())


# In a process of its own --------------------------------------------------------------------------------------------------


def child(kind: str, **facts: Any) -> None:
    """Run one measurement and answer with its figures."""
    from run.devices import configure_tensorflow
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    import model.build  # noqa: F401
    import training.step  # noqa: F401
    from utils.config.device import DeviceConfig

    configure_tensorflow(DeviceConfig(cpu=True), 0)
    answer({"build": _build, "step": _step}[kind](**facts))


def _build(scale: float) -> dict[str, float]:
    from utils.distributed import World

    work = Workload(_rows(scale), options("--cpu"))
    before = _peak_bytes()
    seconds = timed(lambda: work.build("float32", World()))
    return {"seconds": seconds, "before_bytes": before, "peak_bytes": _peak_bytes()}


def _step(dtype: str, xla: bool, batch_size: int) -> dict[str, float]:
    from training.build import build_trainer
    from training.device_batch import to_device
    from utils.distributed import World

    flags = ["--cpu", "--batch_size", batch_size, *(["--amp", "--amp_dtype", dtype] if dtype != "float32" else []), *(["--xla"] if xla else [])]
    work = Workload((1000,) * 26, options(*flags))
    trainer = build_trainer(work.config, work.build(dtype, World()), dtype)
    batch = to_device(work.batches("uniform", 1)[0])
    marks = [time.perf_counter()]
    for step in range(3):
        trainer.step(batch, step, 0.01).numpy()
        marks.append(time.perf_counter())
    return {"seconds": marks[1] - marks[0], "second_step": marks[3] - marks[2]}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    if (given := task()) is not None:
        child(**given)
    else:
        sys.exit(run(StartupOptions, main, __doc__))
