"""The options of a run: typed, documented, checked when constructed; `config` puts them together.

`run.py` holds the mode and the files that a run reports to, `data.py` the options of the dataset, `learning.py` those of the optimizer,
`placement.py` those of table placement, `device.py` those of devices and precision.
"""

from dataclasses import dataclass

from utils.config.option import FROM_0, FROM_1, INHERIT, MODEL, MUST_EQUAL, WITH_WEIGHTS, Bounds, Facts, Reader, check, check_options, option
from utils.config.per_feature import EXPECTED, widths

TRAIN, EVAL, INFERENCE, PREDICT, EXPLAIN, PLAN, EXPORT = "train", "eval", "inference", "predict", "explain", "plan", "export"
DOT, CROSS, CAT, FM, FINALMLP, NONE, WIDE_AND_DEEP = "dot", "cross", "cat", "fm", "finalmlp", "none", "wide_and_deep"
INTERACTIONS = [DOT, CROSS, CAT, FM, FINALMLP, NONE, WIDE_AND_DEEP]  # a list: `model.architectures.register` appends to it
SUM, OF_FEATURE = "sum", "feature"
STACKED, PARALLEL, CROSSNET = "stacked", "parallel", "crossnet"
RECALIBRATE, REWEIGH, AS_IS = "recalibrate", "reweigh", "as_is"
UNIFORM, NORMAL, ZEROS = "uniform", "normal", "zeros"
BEST, LATEST = "best", "latest"  # files in a folder of checkpoints, each with the name of a step

STEPS_FROM_0, STEPS_FROM_1 = Bounds("0 or more steps", 0), Bounds("at least 1 step", 1)
MAX_SIZE = 2**31 - 1  # largest batch or layer: TensorFlow counts in 32 bits
_WIDTH = Bounds("at least 1", 1, MAX_SIZE)
TOP_MLP_DIMS = (1024, 1024, 512, 256, 1)
_WIDTH_OR_FULL = Bounds("at least 1, or 0 for full rank", 0, MAX_SIZE)
SIZE = Bounds(f"at least 1 and at most {MAX_SIZE}", 1, MAX_SIZE)
_MAX_THRESHOLDS = 2**24  # float32 cannot represent more evenly spaced thresholds between 0 and 1
_OF_STREAMS = "--interaction finalmlp"
_STREAMS: Facts = {"resume": MODEL, "needs": "interaction finalmlp"}


@dataclass(frozen=True)
class ModelConfig:
    """Model."""

    embedding_dim: int | tuple[int, ...] = option(
        128,
        "width of every embedding table, or of each feature's (a list, or a JSON file of one), where the feature specification gives none",
        unit="columns",
        reader=Reader(widths, EXPECTED, "N|N,N,…|FILE.json"),
        resume=MODEL,
        not_with=("interaction none",),
    )
    bottom_mlp_dims: tuple[int, ...] | None = option(
        None,
        "layer widths of the bottom MLP; for --interaction dot the last must equal --embedding_dim; the default is 512,256,D",
        resume=MODEL,
        not_with=("interaction wide_and_deep", "interaction fm", "interaction finalmlp", "interaction none"),
        pytorch=("bottom_mlp_sizes",),
    )
    top_mlp_dims: tuple[int, ...] = option(
        TOP_MLP_DIMS,
        "layer widths of the top MLP; the last must be 1",
        resume=MODEL,
        not_with=("interaction finalmlp", "interaction none"),
        pytorch=("top_mlp_sizes",),
    )
    interaction: str = option(
        DOT,
        "combination of the bottom MLP's output and the embeddings: dot: dot products of all pairs (DLRM); cross: low-rank cross layers (DCN V2); "
        "cat: concatenation only; fm: no bottom MLP, products of all pairs and a linear part beside the top MLP (DeepFM; without hidden layers, by "
        "--top_mlp_dims 1, FM); finalmlp: two MLPs of the vectors side by side and a bilinear layer (FinalMLP); none: a weight of each id and "
        "numerical feature (logistic regression); wide_and_deep: no bottom MLP, and a linear part beside the top MLP (see wide_and_deep.py)",
        choices=INTERACTIONS,
        resume=MODEL,
    )
    linear: bool = option(
        False,
        "add a linear part to the logit, with a weight of each id and of each numerical feature; --interaction fm and wide_and_deep always have one",
        resume=MODEL,
        unrecorded=False,
        not_with=("interaction wide_and_deep", "interaction fm", "interaction finalmlp", "interaction none"),
    )
    num_cross_layers: int = option(3, "layers of --interaction cross", resume=MODEL, needs="interaction cross", bounds=_WIDTH)
    cross_layer_projection_dim: int = option(
        512, "rank of each layer of --interaction cross; 0 for full rank", resume=MODEL, needs="interaction cross", bounds=_WIDTH_OR_FULL
    )
    structure: str = option(
        STACKED,
        "place of the cross layers of --interaction cross: stacked: before the top MLP; parallel: beside its hidden layers, both into its last "
        "layer; crossnet: without hidden layers",
        choices=(STACKED, PARALLEL, CROSSNET),
        resume=MODEL,
        unrecorded=STACKED,
        needs="interaction cross",
    )
    stream1_dims: tuple[int, ...] = option((400,), f"layer widths of the first MLP of {_OF_STREAMS}", unrecorded=(400,), **_STREAMS)
    stream2_dims: tuple[int, ...] = option((400,), f"layer widths of the second MLP of {_OF_STREAMS}", unrecorded=(400,), **_STREAMS)
    gate1_features: tuple[str, ...] = option(
        (), f"categorical features whose vectors gate the first MLP of {_OF_STREAMS}; none for no gate", unrecorded=(), **_STREAMS
    )
    gate2_features: tuple[str, ...] = option((), "the same for the second MLP", unrecorded=(), **_STREAMS)
    gate_dims: tuple[int, ...] = option((400,), f"widths of the hidden layers of the gates of {_OF_STREAMS}", unrecorded=(400,), **_STREAMS)
    num_heads: int = option(1, f"heads of the bilinear layer of {_OF_STREAMS}", unrecorded=1, bounds=_WIDTH, **_STREAMS)
    wide_pooling: str = option(
        SUM,
        "pooling of a list's rows in the linear part of --interaction wide_and_deep: sum, as published; feature: the feature's pooling in the deep "
        "part, as in models from before this flag existed",
        choices=(SUM, OF_FEATURE),
        resume=MODEL,
        needs="interaction wide_and_deep",
    )
    logit_shift: float = option(
        0.0,
        "added to the logit wherever the model scores, not in training: the log of the rate at which the training data's negatives were kept; the "
        "default is that of --negatives",
        resume=WITH_WEIGHTS,
        bounds=Bounds("a finite number"),
    )
    batch_norm: bool = option(
        False,
        "batch normalisation of the MLPs' layers, before the ReLU, over the samples of all workers",
        resume=MODEL,
        unrecorded=False,
    )
    batch_norm_epsilon: float = option(
        1e-5, "added to the variance by --batch_norm", resume=MODEL, unrecorded=1e-5, needs="batch_norm", bounds=Bounds("above 0", 0, above=True)
    )
    batch_norm_momentum: float = option(
        0.9,
        "part of the moving mean and variance that a step of --batch_norm keeps",
        modes=(TRAIN,),
        resume=INHERIT,
        needs="batch_norm",
        bounds=Bounds("at least 0 and below 1", 0, 1, below=True),
    )
    embedding_trainable: bool = option(True, "train the embedding tables; false freezes them", modes=(TRAIN, PLAN), resume=MUST_EQUAL)
    embedding_initializer: str | None = option(
        None,
        "distribution of the tables' initial rows around 0: uniform, up to 1/sqrt(rows) or --embedding_initializer_scale; normal, with that scale as "
        "standard deviation; the default is uniform, for Wide & Deep Glorot normal",
        choices=(UNIFORM, NORMAL),
        modes=(TRAIN, INFERENCE),
        not_with=("embedding_zeros_initializer",),
    )
    embedding_initializer_scale: float | None = option(
        None,
        "bound or standard deviation of --embedding_initializer; the default is 1/sqrt(rows) for uniform, 0.0001 for normal",
        modes=(TRAIN, INFERENCE),
        needs="embedding_initializer",
        bounds=Bounds("above 0", 0, above=True),
    )
    bias_initializer: str = option(
        NORMAL,
        "start of the MLPs' biases: normal, around 0 with standard deviation sqrt(1/width), as published; or zeros, that of the logit included",
        choices=(NORMAL, ZEROS),
        modes=(TRAIN, INFERENCE),
        not_with=("interaction wide_and_deep",),
    )
    embedding_zeros_initializer: bool = option(False, "start the tables at zero: faster to build, for benchmarks", modes=(TRAIN, INFERENCE))

    def __post_init__(self):
        check_options(self)
        _check_model(self)


def _check_model(model: ModelConfig) -> None:
    """Raise ValueError where options of a model exclude each other; give the bottom MLP and crossnet's top MLP their default widths."""
    dims = model.embedding_dim if isinstance(model.embedding_dim, tuple) else (model.embedding_dim,)
    check(len(dims) > 0 and min(dims) >= 1, "embedding_dim", ",".join(map(str, dims)), "at least 1 column")
    if model.bottom_mlp_dims is None:
        object.__setattr__(model, "bottom_mlp_dims", (512, 256, max(dims)))
    for name in ("bottom_mlp_dims", "top_mlp_dims", "stream1_dims", "stream2_dims", "gate_dims"):
        layers = getattr(model, name)
        sound = len(layers) > 0 and min(layers) >= 1 and max(layers) <= MAX_SIZE
        check(sound, name, ",".join(map(str, layers)), "one or more positive layer widths")
    for name in ("stream1_dims", "stream2_dims"):
        layers, heads = getattr(model, name), model.num_heads
        check(layers[-1] % heads == 0, name, ",".join(map(str, layers)), f"a last width that --num_heads {heads} divides")
    for name in ("gate1_features", "gate2_features"):
        features = getattr(model, name)
        check(len(set(features)) == len(features) and all(features), name, ",".join(features), "different names, separated by commas")
    if model.interaction in (DOT, FM, FINALMLP) and len(set(dims)) > 1:
        raise ValueError(
            f"--embedding_dim {','.join(map(str, dims))}: --interaction {model.interaction} takes tables of one width; --interaction cross or cat "
            "takes any"
        )
    if model.interaction == DOT and model.bottom_mlp_dims[-1] != dims[0]:
        raise ValueError(
            f"--bottom_mlp_dims {','.join(map(str, model.bottom_mlp_dims))}: the last width must be --embedding_dim {dims[0]}, "
            "because the dot interaction takes products of both"
        )
    structure = model.structure if model.interaction == CROSS else STACKED
    if structure == CROSSNET and model.top_mlp_dims == TOP_MLP_DIMS:
        object.__setattr__(model, "top_mlp_dims", (1,))
    layers = ",".join(map(str, model.top_mlp_dims))
    if structure == CROSSNET and len(model.top_mlp_dims) > 1:
        raise ValueError(f"--top_mlp_dims {layers}: --structure crossnet has no hidden layers; drop the flag, or take stacked or parallel")
    if structure == PARALLEL and len(model.top_mlp_dims) == 1:
        raise ValueError(f"--top_mlp_dims {layers}: --structure parallel needs hidden layers, 400,400,1 for instance; without any take crossnet")
    check(model.top_mlp_dims[-1] == 1, "top_mlp_dims", ",".join(map(str, model.top_mlp_dims)), "1 as the last width: one logit per sample")


_INHERITED: Facts = {"modes": (TRAIN,), "resume": INHERIT}


@dataclass(frozen=True)
class TrainingConfig:
    """Length of training, evaluation and checkpoints."""

    epochs: int = option(1, "passes over the training data", unit="epochs", bounds=FROM_1, wide_and_deep=("num_epochs",), **_INHERITED)
    steps_per_epoch: int | None = option(
        None,
        "length of an epoch; the next epoch continues in the training data where this one ended; the default is one pass over all rows",
        unit="steps",
        modes=(TRAIN, PLAN),
        resume=MUST_EQUAL,
        bounds=STEPS_FROM_1,
    )
    max_steps: int = option(
        -1,
        "stop training after this many steps, or --mode inference after this many batches of each size; -1 for no limit",
        unit="steps",
        modes=(TRAIN, INFERENCE, PLAN),
        bounds=Bounds("at least 1 step, or -1 for no limit", 1, besides=(-1,)),
    )
    evals_per_epoch: int = option(
        1, "evaluations per epoch, evenly spread; 0 for none", replaced_by=("test_freq",), not_with=("test_freq",), bounds=FROM_0, **_INHERITED
    )
    test_freq: int | None = option(
        None,
        "evaluate every so many steps instead of --evals_per_epoch times per epoch",
        unit="steps",
        replaced_by=("evals_per_epoch",),
        bounds=STEPS_FROM_1,
        **_INHERITED,
    )
    test_after: float = option(
        0.0, "do not evaluate before this many epochs have passed", unit="epochs", bounds=Bounds("0 or more epochs", 0), **_INHERITED
    )
    auc_threshold: float | None = option(
        None,
        "stop training when the AUC (of the valid split where there is one) reaches this",
        bounds=Bounds("above 0 and at most 1", 0, 1, above=True),
        **_INHERITED,
    )
    early_stop_patience: int | None = option(
        None, "stop training after so many evaluations in a row without a better --best_metric", unit="evaluations", bounds=FROM_1, **_INHERITED
    )
    auc_thresholds: int | None = option(
        None,
        "approximate the AUC with this many thresholds, 2 or more; the default is the exact AUC",
        wide_and_deep=("num_auc_thresholds",),
        resume=INHERIT,
        bounds=Bounds(f"at least 2 and at most {_MAX_THRESHOLDS}", 2, _MAX_THRESHOLDS),
    )
    save_checkpoint_path: str | None = option(None, "folder for checkpoints; one is always written when training ends", modes=(TRAIN,))
    restore_checkpoint_path: str | None = option(
        None, "checkpoint to restore: a folder of steps (see --checkpoint_choice), one step, or FOLDER/best", pytorch=("load_checkpoint_path",)
    )
    checkpoint_choice: str = option(
        BEST,
        "checkpoint to take from the folder given to --restore_checkpoint_path: best (the latest where no best is kept) or latest; training always "
        "continues from the latest",
        choices=(BEST, LATEST),
        modes=(EVAL, INFERENCE, PREDICT, EXPLAIN, EXPORT),
    )
    restore_fallback: bool = option(False, "verify the whole checkpoint first; if it is damaged, restore the newest intact one before it")
    allow_growth: bool = option(
        False,
        "restore a model with fewer table rows or fewer features; new rows and features are initialised, and training starts at step 0",
        modes=(TRAIN,),
        needs="restore_checkpoint_path",
    )
    allow_other_transforms: bool = option(
        False, "warn instead of failing where the dataset transforms a feature's raw values differently from the checkpoint's dataset"
    )
    resume: str = option(
        "exact",
        "exact: continue where the restored run stopped; auto: the same from --save_checkpoint_path if it holds a checkpoint, else start a new run; "
        "weights: restore the weights only and start at step 0",
        choices=("exact", "auto", "weights"),
        modes=(TRAIN,),
    )
    overwrite_checkpoints: bool = option(
        False,
        "start a new run although --save_checkpoint_path holds another run's checkpoints; they are removed when this run writes its first",
        modes=(TRAIN,),
        needs="save_checkpoint_path",
    )
    checkpoint_every_steps: int | None = option(
        None,
        "write a checkpoint every so many steps",
        unit="steps",
        replaced_by=("checkpoint_every_minutes",),
        needs="save_checkpoint_path",
        bounds=FROM_1,
        **_INHERITED,
    )
    checkpoint_every_epoch: bool = option(False, "write a checkpoint after every epoch", needs="save_checkpoint_path", **_INHERITED)
    checkpoint_every_minutes: float | None = option(
        None,
        "write a checkpoint when so many minutes have passed",
        unit="minutes",
        replaced_by=("checkpoint_every_steps",),
        needs="save_checkpoint_path",
        bounds=Bounds("more than 0 minutes", 0, above=True),
        **_INHERITED,
    )
    keep_checkpoints: int = option(3, "newest checkpoints to keep", needs="save_checkpoint_path", bounds=FROM_1, **_INHERITED)
    keep_best_checkpoint: bool = option(
        False,
        "also write a checkpoint whenever --best_metric improves, and keep the best one; --early_stop_patience implies this",
        needs="save_checkpoint_path",
        **_INHERITED,
    )
    benchmark_warmup_steps: int = option(
        10, "first steps to leave out of throughput and latency", unit="steps", modes=(TRAIN, INFERENCE), bounds=STEPS_FROM_0
    )
    inference_benchmark_steps: int | None = option(
        None, "batches to measure of each size; the default is --max_steps, or 1000", unit="batches", modes=(INFERENCE,)
    )
    inference_seconds: float = option(
        60.0,
        "time limit of the measurement of each batch size; the batches done by then count",
        unit="seconds",
        modes=(INFERENCE,),
        bounds=Bounds("more than 0 seconds", 0, above=True),
    )
    inference_benchmark_batch_sizes: tuple[int, ...] = option(
        (), "global batch sizes to measure; the default is --valid_batch_size", unit="samples", modes=(INFERENCE,)
    )

    def __post_init__(self):
        check_options(self)
        if self.allow_growth and self.resume == "auto":
            raise ValueError("--allow_growth and --resume auto exclude each other: a model that has grown starts at step 0; drop one of them")
        if self.overwrite_checkpoints and self.resume == "auto":
            raise ValueError("--overwrite_checkpoints and --resume auto exclude each other: one replaces checkpoints, the other continues; drop one")
        sizes = self.inference_benchmark_batch_sizes
        check(all(1 <= size <= MAX_SIZE for size in sizes), "inference_benchmark_batch_sizes", ",".join(map(str, sizes)), "positive batch sizes")

    @property
    def keeps_best(self) -> bool:
        """True where the best weights are kept beside the newest and tested at the end of training."""
        return self.keep_best_checkpoint or self.early_stop_patience is not None

    @property
    def need_evaluations(self) -> list[str]:
        """The flags in use that depend on evaluations during training."""
        wanted = {
            "keep_best_checkpoint": self.keep_best_checkpoint,
            "auc_threshold": self.auc_threshold is not None,
            "early_stop_patience": self.early_stop_patience is not None,
        }
        return [f"--{name}" for name, used in wanted.items() if used]
