"""The options of a run's mode, and of the files that it reports to."""

from dataclasses import dataclass

from utils.config.option import FROM_0, FROM_1, MUST_EQUAL, Bounds, check_options, option
from utils.config.options import EVAL, EXPLAIN, EXPORT, INFERENCE, PLAN, PREDICT, STEPS_FROM_1, TRAIN

MODES = (TRAIN, EVAL, INFERENCE, PREDICT, EXPLAIN, PLAN, EXPORT)
_LOG_PATH = "dlrm_tf_log.json"
_PROFILE_PATH = "profile"


@dataclass(frozen=True)
class RunConfig:
    """The mode of a run, and the files that it reports to."""

    mode: str = option(
        TRAIN,
        "train, evaluate, measure inference, write predictions, rank features by importance, show the placement of tables, or export for serving",
        choices=MODES,
    )
    seed: int = option(
        0, "seed of weights, batch order and synthetic data", resume=MUST_EQUAL, bounds=Bounds("0 or more, below 2^63", 0, 2**63, below=True)
    )
    log_path: str | None = option(
        None, f"log file of 'DLLL' JSON lines; empty for none; the default is {_LOG_PATH}, and dlrm_tf_log_MODE.json where --mode is not train"
    )
    args_path: str | None = option(None, "JSON file to write all flags to", modes=(TRAIN, EVAL, INFERENCE, PREDICT, EXPLAIN))
    print_freq: int = option(100, "console and log interval while training", unit="steps", modes=(TRAIN,), bounds=STEPS_FROM_1)
    log_steps: bool = option(False, "log batch_samplesps of every step after --benchmark_warmup_steps", modes=(TRAIN, INFERENCE))
    split: str = option(
        "test", "split to score: train, valid, test or any other split of the dataset, with or without labels", modes=(PREDICT, EXPLAIN)
    )
    predictions_path: str | None = option(
        None, "Parquet file for the predictions: key columns, row, score, label and group; those that the split lacks are left out", modes=(PREDICT,)
    )
    untrained: bool = option(False, "evaluate the model with its initial weights, without a checkpoint", modes=(EVAL,))
    tensorboard_path: str | None = option(
        None, "folder for TensorBoard: scalars, curves, hyper-parameters and the profile; written by the first worker", modes=(TRAIN, EVAL)
    )
    log_norms: bool = option(False, "log the norms of gradients and weights by group at every --print_freq; takes time", modes=(TRAIN,))
    verbose: bool = option(False, "print more about the set-up of the run", modes=(TRAIN, EVAL, INFERENCE, PREDICT, EXPLAIN))
    explain_samples: int = option(
        10_000, "rows of --split that the importance of features is measured on", unit="rows", modes=(EXPLAIN,), bounds=FROM_1
    )
    explain_repeats: int = option(5, "random permutations of each feature", modes=(EXPLAIN,), bounds=FROM_1)
    profiler_start_step: int | None = option(
        None,
        "step at which a TensorFlow profile of 10 steps starts; written to --tensorboard_path, without it to ./profile",
        modes=(TRAIN,),
        bounds=FROM_0,
    )
    profiled_rank: int = option(0, "rank that --profiler_start_step profiles", modes=(TRAIN,), needs="profiler_start_step", bounds=FROM_0)

    def __post_init__(self):
        check_options(self)
        if self.log_path is None:  # only training writes to the default log: other modes must not replace it
            object.__setattr__(self, "log_path", _LOG_PATH if self.mode == TRAIN else _LOG_PATH.replace(".json", f"_{self.mode}.json"))

    @property
    def profile_path(self) -> str:
        """The folder of the profile."""
        return self.tensorboard_path or _PROFILE_PATH
