"""Compare the project's training step with the machine's ceiling, stock Keras and a plain step by hand; measure the parts of the step.

  python -m benchmarks.train_step
  python -m benchmarks.train_step --precisions bfloat16 --ids power_law --num_rounds 9
  python -m benchmarks.train_step --t15 --precisions float32
  python -m benchmarks.train_step --hotness mlperf
  python -m benchmarks.train_step --model deepfm --ids power_law
  python -m benchmarks.train_step --model wide_and_deep --ids power_law
  python -m benchmarks.train_step --model wide_and_deep --ids power_law --batch_size 131072 --num_batches 2 --steps_per_round 1 --num_rounds 3 \\
      --xla off --compiled_peers false

Every round measures all steps in turn, in one process with the settings of dlrm.py; ratios are taken within a round. The batches are on the device
beforehand. The ceiling is the matrix products of the MLPs (and of cross layers) alone, forward and backward; GFLOP/s count only these.
With --hotness features have several ids a sample, whose vectors are summed; lists are full, so that the peers need no masks.
With --model wide_and_deep the model is the published one of Outbrain's clicks: its tables, five layers of 1,024 with dropout 0.1, FTRL for the linear
part and RMSprop for the deep one. Its peers are stock Keras with two optimizers and, where it is installed, tf_keras's WideDeepModel.
With --model deepfm or finalmlp all weights are trained by SGD, as in dlrm; the peers are stock Keras, and a feature gates each stream of FinalMLP.
With --batch_norm the Keras peers have it, too; the parts of the step then have the MLPs of all slices together.
With --t15 the project's step on tables of the 4.2-billion-parameter model (15.6 GiB) is compared with its step on --cardinality rows a table.
"""

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.rounds import Action, Seconds, interleave, median, speedup, spread
from benchmarks.workload import EXPONENTS, HOTNESS_HELP, Workload, check_words, hotness_of_tables, options, t15_rows
from dataloading.tfrecord.spec import outbrain_spec
from utils.config.option import option
from utils.config.options import CAT, CROSS, DOT, FINALMLP, FM, WIDE_AND_DEEP
from utils.dialects.wide_and_deep import DEFAULTS as PUBLISHED
from utils.errors import UserError

PRECISIONS = ("float32", "bfloat16", "float16")
PROJECT, COMPILED, KERAS, KERAS_COMPILED, PLAIN, CEILING = "project", "project --xla", "Keras", "Keras jit_compile", "plain TensorFlow", "ceiling"
LARGE, LARGE_COMPILED = "project t15", "project t15 --xla"
TF_KERAS = "tf_keras WideDeepModel"
PEERS = (KERAS, KERAS_COMPILED, PLAIN, TF_KERAS)
DLRM, DEEPFM = "dlrm", "deepfm"
FIELD_WIDTH, FIELD_DIMS = 16, (400, 400, 400, 1)  # sizes with which DeepFM and FinalMLP are published for Criteo's logs
_NOT_OF_OTHERS = ("interaction", "bottom_mlp_dims", "cross_layer_projection_dim", "t15")
UNREAD = {WIDE_AND_DEEP: ("batch_norm", *_NOT_OF_OTHERS), DEEPFM: _NOT_OF_OTHERS, FINALMLP: _NOT_OF_OTHERS}  # options without effect, by model


@dataclass(frozen=True)
class StepOptions(Options):
    """Training step benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {
        "batch_size": 64,
        "num_tables": 3,
        "cardinality": 50,
        "embedding_dim": 8,
        "bottom_mlp_dims": (16, 8),
        "top_mlp_dims": (16, 1),
        "precisions": ("float32",),
        "ids": ("power_law",),
        "steps_per_round": 1,
        "gradient_slices": 2,
    }

    batch_size: int = option(8192, "batch size", unit="samples")
    model: str = option(
        DLRM,
        "model: dlrm with --interaction, deepfm, finalmlp, or wide_and_deep as wide_and_deep.py trains it",
        choices=(DLRM, DEEPFM, FINALMLP, WIDE_AND_DEEP),
    )
    num_tables: int | None = option(None, "number of tables, of one size; the default is 26, or Outbrain's tables for wide_and_deep", unit="tables")
    cardinality: int | None = option(None, "rows of each table; the default is 100000, or those of Outbrain's tables for wide_and_deep", unit="rows")
    hotness: str = option("1", HOTNESS_HELP)
    embedding_dim: int | None = option(
        None,
        "columns of every table; the default is 128, for deepfm and finalmlp 16, for wide_and_deep with its own tables the widths of Outbrain's",
        unit="columns",
    )
    bottom_mlp_dims: tuple[int, ...] = option((512, 256, 128), "layer widths of the bottom MLP")
    top_mlp_dims: tuple[int, ...] | None = option(
        None,
        "layer widths of the top MLP, of the deep part of wide_and_deep, or but for the last of both streams of finalmlp; the default is "
        "1024,1024,512,256,1, for deepfm and finalmlp 400,400,400,1, or five layers of 1024 and 1",
    )
    interaction: str = option("dot", "interaction of the vectors; the parts of the step are measured only with dot", choices=(DOT, CROSS, CAT))
    cross_layer_projection_dim: int = option(512, "rank of the cross layers' kernels")
    batch_norm: bool = option(False, "batch normalisation of the MLPs; the plain TensorFlow peer, which has none, is left out")
    t15: bool = option(False, "also measure on tables of the 4.2-billion-parameter model, without peers, for which memory does not suffice")
    precisions: tuple[str, ...] = option(("float32", "bfloat16"), f"precisions of the dense part, as by --amp in dlrm.py: {', '.join(PRECISIONS)}")
    ids: tuple[str, ...] = option(tuple(EXPONENTS), f"distributions of the ids: {', '.join(EXPONENTS)}")
    xla: tuple[str, ...] = option(("off", "on"), "project's steps without --xla, with it, or both: off, on")
    peers: bool = option(True, "measure the peers as well")
    compiled_peers: bool = option(True, "also measure stock Keras with jit_compile, which takes the most memory")
    parts: bool = option(True, "measure the parts of the step as well, if the interaction is dot")
    steps_per_round: int = option(3, "training steps of one turn", unit="steps")
    num_batches: int = option(4, "number of different batches, used in turn", unit="batches")
    gradient_slices: int | None = option(None, "value of --gradient_slices for dlrm.py")
    threads: int | None = option(None, "threads inside an operation; the default is TensorFlow's", unit="threads")
    cpu: bool = option(False, "run on the CPU even where there is a GPU")

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """See `Options`."""
        unread = [name for name in UNREAD.get(given.get("model", DLRM), ()) if name in given]
        if unread:
            raise UserError(f"--{unread[0]} has no effect with --model {given['model']}; drop it")
        without = "--peers false" if given.get("peers") is False else "--t15" if given.get("t15") else None
        if without and "compiled_peers" in given:
            raise UserError(f"--compiled_peers has no effect with {without}; drop it")

    def __post_init__(self):
        super().__post_init__()
        if self.model == WIDE_AND_DEEP and self.peers and "float16" in self.precisions:
            raise ValueError("--precisions float16 --model wide_and_deep: the peers have no loss scale for two optimizers; add --peers false")
        check_words("precisions", self.precisions, PRECISIONS)
        check_words("ids", self.ids, tuple(EXPONENTS))
        check_words("xla", self.xla, ("off", "on"))
        for rows in (self.rows, *([t15_rows()] if self.t15 else [])):
            hotness_of_tables(self.hotness, rows)

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows V of each table."""
        if self._outbrain:
            return outbrain_spec().cardinalities
        return (self.cardinality or 100_000,) * (self.num_tables or 26)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the tables, or one number for all."""
        if self._outbrain and self.embedding_dim is None:
            return tuple(feature.embedding_dim for feature in outbrain_spec().categorical)
        return (self.embedding_dim or (FIELD_WIDTH if self.model in (DEEPFM, FINALMLP) else 128),)

    @property
    def _outbrain(self) -> bool:
        return self.model == WIDE_AND_DEEP and self.num_tables is None and self.cardinality is None

    def workload(self, rows: tuple[int, ...], dtype: str) -> Workload:
        """Return the workload with tables of these numbers of rows."""
        return Workload(rows, options(*self.flags(dtype, False)), hotness=hotness_of_tables(self.hotness, rows))

    def flags(self, dtype: str, xla: bool) -> list[str]:
        """Return the flags for dlrm.py."""
        flags = ["--batch_size", self.batch_size, "--embedding_dim", _words(self.widths)]
        flags += ["--gradient_slices", self.gradient_slices] if self.gradient_slices else []
        flags += ["--batch_norm"] if self.batch_norm else []
        if self.model == WIDE_AND_DEEP:
            for name in ("interaction", "optimizer", "rho", "epsilon_outside_root", "learning_rate", "linear_learning_rate", "dropout"):
                flags += [f"--{name}", PUBLISHED[name]]
            flags += ["--top_mlp_dims", _words(self.top_mlp_dims or PUBLISHED["top_mlp_dims"])]
        elif self.model == DEEPFM:
            flags += ["--interaction", FM, "--linear_optimizer", "sgd", "--top_mlp_dims", _words(self.top_mlp_dims or FIELD_DIMS)]
        elif self.model == FINALMLP:
            *dims, _ = self.top_mlp_dims or FIELD_DIMS
            flags += ["--interaction", FINALMLP, "--stream1_dims", _words(dims), "--stream2_dims", _words(dims), "--gate_dims", dims[-1]]
            flags += ["--gate1_features", "cat_0", "--gate2_features", "cat_1", "--num_heads", 8]
        else:
            flags += ["--interaction", self.interaction, "--bottom_mlp_dims", _words(self.bottom_mlp_dims)]
            flags += ["--cross_layer_projection_dim", self.cross_layer_projection_dim] if self.interaction == CROSS else []
            flags += ["--top_mlp_dims", _words(self.top_mlp_dims)] if self.top_mlp_dims else []
        flags += ["--intra_op_parallelism", self.threads] if self.threads else []
        flags += ["--amp", "--amp_dtype", dtype] if dtype != "float32" else []
        return [*flags, *(["--xla"] if xla else []), *(["--cpu"] if self.cpu else [])]


def _words(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def main(chosen: StepOptions, report: Report) -> None:
    """Measure and print."""
    from run.devices import configure_tensorflow
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    first = options(*chosen.flags(chosen.precisions[0], False))
    report.figures["device"] = configure_tensorflow(first.device, 0)
    _say_of_peers(chosen, report)
    report.figures["results"] = []
    for dtype in chosen.precisions:
        _measure_precision(chosen, dtype, report)
        gc.collect()  # models are in reference cycles, and memory does not suffice for two sets of large tables


def _say_of_peers(chosen: StepOptions, report: Report) -> None:
    from benchmarks.peers import has_keras_rs
    from benchmarks.wide_and_deep_peers import tf_keras_version

    if chosen.model == WIDE_AND_DEEP:
        report.figures["tf_keras"] = version = tf_keras_version()
        missing = "tf_keras is not installed, so its WideDeepModel is not measured; install it from benchmarks/requirements-peers.txt"
        report.say(f"on the {report.figures['device']}; {f'tf_keras {version}' if version else missing}")
        return
    report.figures["keras_interaction"] = "keras_rs" if has_keras_rs() else "keras.ops"
    report.say(f"on the {report.figures['device']}; the Keras peer's interaction is that of {report.figures['keras_interaction']}")


def _measure_precision(chosen: StepOptions, dtype: str, report: Report) -> None:
    from benchmarks.peers import Feed, ceiling
    from benchmarks.step_parts import part_actions
    from utils.distributed import World

    work, large = chosen.workload(chosen.rows, dtype), chosen.workload(t15_rows(), dtype) if chosen.t15 else None
    model, feed, large_feed = work.build(dtype, World()), Feed(), Feed()
    actions = {CEILING: ceiling(work, dtype, chained=work.interaction.kind == WIDE_AND_DEEP)}
    actions |= _project(chosen, dtype, model, feed, PROJECT, COMPILED)
    if large:
        actions |= _project(chosen, dtype, large.build(dtype, World()), large_feed, LARGE, LARGE_COMPILED)
    elif chosen.peers:
        actions |= {name: peer for name, peer in _peers(work, dtype, feed).items() if chosen.compiled_peers or name != KERAS_COMPILED}
    parts = part_actions(work, model, feed, dtype) if chosen.parts and work.interaction.kind == DOT else {}
    for ids in chosen.ids:
        feed.load(work, ids, chosen.num_batches)
        if large:
            large_feed.load(large, ids, chosen.num_batches)
        seconds = interleave(actions | parts, chosen.num_rounds, chosen.steps_per_round, warmup=2)
        result = {"precision": dtype, "ids": ids, "rows": work.rows, "widths": work.widths, "seconds": seconds}
        report.figures["results"].append(result)
        title = f"{chosen.model}, {dtype}, {ids} ids, {work.id_rows[-1].stop} a sample, batch {work.batch_size}"
        result |= _show_steps(report, title, work, list(actions), seconds)
        if parts:
            result["parts"] = _show_parts(report, list(parts), seconds)


def _peers(work: Workload, dtype: str, feed) -> dict[str, Action]:
    from benchmarks.peers import keras_peer, plain_peer
    from benchmarks.vector_peers import keras_vector_peer
    from benchmarks.wide_and_deep_peers import keras_wide_and_deep, legacy_wide_and_deep, tf_keras_version

    if work.interaction.kind in (FM, FINALMLP):
        stock = keras_vector_peer(work, dtype, feed)
        return {KERAS: stock[False], KERAS_COMPILED: stock[True]}
    if work.interaction.kind != WIDE_AND_DEEP:
        stock = keras_peer(work, dtype, feed)
        plain = {} if work.config.model.batch_norm else {PLAIN: plain_peer(work, dtype, feed)}
        return {KERAS: stock[False], KERAS_COMPILED: stock[True]} | plain
    stock = keras_wide_and_deep(work, dtype, feed)
    legacy = {TF_KERAS: legacy_wide_and_deep(work, dtype, feed)} if tf_keras_version() else {}
    return {KERAS: stock[False], KERAS_COMPILED: stock[True]} | legacy


def _project(chosen: StepOptions, dtype: str, model, feed, plain: str, compiled: str) -> dict[str, Action]:
    from benchmarks.peers import LEARNING_RATE, steps
    from training.build import build_trainer

    deep, wide = PUBLISHED["learning_rate"], PUBLISHED["linear_learning_rate"]
    # one rate for each group: the deep layers, the linear layer, the wide tables and the deep tables
    rates = {WIDE_AND_DEEP: (deep, wide, wide, deep), DEEPFM: (LEARNING_RATE,) * 4}.get(chosen.model, LEARNING_RATE)
    actions = {}
    for name, word in ((plain, "off"), (compiled, "on")):
        if word in chosen.xla:
            trainer = build_trainer(options(*chosen.flags(dtype, word == "on")), model, dtype)
            actions[name] = steps(lambda i, trainer=trainer: trainer.step(feed.on_device(i), i, rates))
    return actions


def _show_steps(report: Report, title: str, work: Workload, names: list[str], seconds: Seconds) -> dict[str, Any]:
    measured = [peer for peer in PEERS if peer in names]
    best = min(measured, key=lambda name: median(seconds, name)) if measured else None
    figures = {
        name: {
            "samples_per_s": work.batch_size / median(seconds, name),
            "step_time_ms": 1000 * median(seconds, name),
            "of_ceiling": speedup(seconds, name, CEILING),
            "of_best_peer": speedup(seconds, name, best) if best else None,
            "gflop_per_s": work.product_flops / median(seconds, name) / 1e9,
            "spread": spread(seconds, name),
        }
        for name in names
    }
    columns = ["", "samples/s", "ms", "of the ceiling", "of the best peer", "GFLOP/s", "spread"]
    report.table(title, columns, [(name, *facts.values()) for name, facts in figures.items()])
    pairs = {
        "xla": (COMPILED, PROJECT),
        "t15": (LARGE, PROJECT),
        "t15_xla": (LARGE_COMPILED, COMPILED),
    }
    ratios = {key: speedup(seconds, *pair) for key, pair in pairs.items() if set(pair) <= set(names)}
    for key, ratio in ratios.items():
        report.say(f"{' / '.join(pairs[key])}: {ratio:.3f}")
    return {"steps": figures, "best_peer": best, "ratios": ratios}


def _show_parts(report: Report, names: list[str], seconds: Seconds) -> dict[str, Any]:
    milliseconds = {name: 1000 * median(seconds, name) for name in names}
    whole = next(1000 * median(seconds, name) for name in (PROJECT, COMPILED) if name in seconds)
    total = sum(milliseconds.values())
    milliseconds |= {"sum of the parts": total, "the whole step": whole, "rest": whole - total}
    report.table("where the time goes: each part alone", ["", "ms"], list(milliseconds.items()))
    return milliseconds


if __name__ == "__main__":
    sys.exit(run(StepOptions, main, __doc__))
