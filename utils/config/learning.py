"""The options of the optimizer, of the learning rate and of regularisation."""

from dataclasses import dataclass

from utils.config.option import FROM_0, FROM_1, INHERIT, MUST_EQUAL, POSITIVE, Bounds, check, check_options, option
from utils.config.options import PLAN, STEPS_FROM_0, TRAIN

OPTIMIZERS = ("sgd", "adam", "adagrad", "rowwise_adagrad", "ftrl", "rmsprop")  # training/optimizers/table.py implements each

STEPS, PLATEAU = "steps", "plateau"  # --lr_schedule
_OTHER_SCHEDULES = "deep_warmup_epochs", "lr_schedule plateau"
_LINEAR = "linear or interaction fm or interaction wide_and_deep"
_SMALL = Bounds("at least 1e-20", 1e-20)  # float32 holds it, and float64 its square
_BELOW_1 = Bounds("at least 0 and below 1", 0, 1, below=True)


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer."""

    optimizer: str = option(
        "sgd",
        "optimizer of tables and dense layers; of tables, only rows in the batch are updated; rowwise_adagrad trains the dense layers with adagrad",
        choices=OPTIMIZERS,
        modes=(TRAIN, PLAN),
        resume=MUST_EQUAL,
    )
    embedding_optimizer: str | None = option(
        None,
        "optimizer of the tables; the default is --optimizer",
        choices=OPTIMIZERS,
        modes=(TRAIN, PLAN),
        resume=MUST_EQUAL,
        not_with=("embedding_trainable false",),
    )
    dense_update_rows: int = option(
        0,
        "update tables of at most so many rows whole in every step, with the moments of rows that the batch lacks, as Keras and PyTorch do by "
        "default; 0 for none",
        unit="rows",
        modes=(TRAIN, PLAN),
        resume=INHERIT,
        not_with=("embedding_trainable false",),
        bounds=FROM_0,
    )
    momentum: float = option(0.0, "momentum of SGD", modes=(TRAIN, PLAN), optimizers=("sgd",), resume=INHERIT, bounds=_BELOW_1)
    beta1: float = option(0.9, "decay of Adam's first moment", modes=(TRAIN,), optimizers=("adam",), resume=INHERIT, bounds=_BELOW_1)
    beta2: float = option(0.999, "decay of Adam's second moment", modes=(TRAIN,), optimizers=("adam",), resume=INHERIT, bounds=_BELOW_1)
    rho: float = option(0.9, "decay of RMSprop's mean of squares", modes=(TRAIN,), optimizers=("rmsprop",), resume=INHERIT, bounds=_BELOW_1)
    epsilon: float = option(
        1e-7,
        "what Adam, Adagrad and RMSprop add to the root that they divide by, or to its square; PyTorch has 1e-8 for Adam and RMSprop. It matters "
        "where gradients are small, as those of rare rows are",
        modes=(TRAIN,),
        optimizers=("adam", "adagrad", "rowwise_adagrad", "rmsprop"),
        resume=INHERIT,
        bounds=_SMALL,
    )
    epsilon_outside_root: bool = option(
        False,
        "divide in RMSprop by sqrt(mean of squares) + --epsilon, as Keras's legacy optimizers and PyTorch do, in place of Keras 3's sqrt(mean of "
        "squares + --epsilon); it matters where gradients are below 3e-4, as in large batches",
        modes=(TRAIN,),
        optimizers=("rmsprop",),
        resume=INHERIT,
        unrecorded=False,
    )
    ftrl_l1: float = option(0.0, "FTRL's L1 regularisation", modes=(TRAIN,), optimizers=("ftrl",), resume=INHERIT, bounds=FROM_0)
    ftrl_l2: float = option(0.0, "FTRL's L2 regularisation", modes=(TRAIN,), optimizers=("ftrl",), resume=INHERIT, bounds=FROM_0)
    ftrl_power: float = option(
        -0.5,
        "power of FTRL's accumulator in the learning rate; values other than -0.5 are slower",
        modes=(TRAIN,),
        optimizers=("ftrl",),
        resume=INHERIT,
        bounds=Bounds("0 or less", most=0),
    )
    linear_optimizer: str = option(
        "ftrl",
        "optimizer of the linear part, of --linear and --interaction fm and wide_and_deep",
        choices=tuple(name for name in OPTIMIZERS if name != "rowwise_adagrad"),
        modes=(TRAIN, PLAN),
        resume=MUST_EQUAL,
        needs=_LINEAR,
    )
    linear_learning_rate: float = option(
        0.02,
        "learning rate of the linear part; it is constant, but for the reductions of --lr_schedule plateau",
        modes=(TRAIN,),
        resume=INHERIT,
        needs=_LINEAR,
        bounds=POSITIVE,
    )

    @property
    def of_tables(self) -> str:
        """The name of the tables' optimizer."""
        return self.embedding_optimizer or self.optimizer

    def __post_init__(self):
        check_options(self)


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate."""

    learning_rate: float = option(
        24.0,
        "learning rate after the warm-up",
        modes=(TRAIN,),
        resume=INHERIT,
        pytorch=("lr",),
        wide_and_deep=("deep_learning_rate",),
        bounds=POSITIVE,
    )
    embedding_learning_rate: float | None = option(
        None,
        "learning rate of the tables after the warm-up; the default is --learning_rate",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("embedding_trainable false",),
        bounds=POSITIVE,
    )
    deep_warmup_epochs: float | None = option(
        None,
        "use the schedule of NVIDIA's Wide & Deep in place of --warmup_steps and the decay: over so many epochs the learning rate grows linearly "
        "from 0; then it is a quarter of --learning_rate, and in the second half of the remaining training an eighth",
        unit="epochs",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("lr_schedule plateau",),
        bounds=Bounds("0 or more epochs", 0),
    )
    lr_schedule: str = option(
        STEPS,
        "learning rate after the warm-up: steps: constant, then the polynomial decay; plateau: multiplied by --plateau_factor when evaluations on "
        "the valid split bring no better --best_metric",
        choices=(STEPS, PLATEAU),
        modes=(TRAIN,),
        resume=INHERIT,
    )
    plateau_factor: float = option(
        0.1,
        "factor by which --lr_schedule plateau reduces all learning rates",
        modes=(TRAIN,),
        resume=INHERIT,
        needs="lr_schedule plateau",
        bounds=Bounds("above 0 and below 1", 0, 1, above=True, below=True),
    )
    plateau_patience: int = option(
        1,
        "evaluations in a row without a better --best_metric after which --lr_schedule plateau reduces the learning rates",
        unit="evaluations",
        modes=(TRAIN,),
        resume=INHERIT,
        needs="lr_schedule plateau",
        bounds=FROM_1,
    )
    plateau_min_lr: float = option(
        1e-6,
        "learning rate below which --lr_schedule plateau reduces none",
        modes=(TRAIN,),
        resume=INHERIT,
        needs="lr_schedule plateau",
        bounds=FROM_0,
    )
    warmup_steps: int = option(
        8000,
        "steps over which the learning rate grows linearly from 0",
        unit="steps",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("deep_warmup_epochs",),
        bounds=STEPS_FROM_0,
    )
    warmup_factor: int = option(
        0,
        "start of the warm-up, as a number k: the warm-up begins at 1 - 1/2^k of the learning rate (0: at 0, 1: at half, 2: at three quarters)",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("deep_warmup_epochs",),
        bounds=Bounds("at least 0 and at most 64", 0, 64),
    )
    decay_start_step: int | None = option(
        48000,
        "step at which the learning rate starts to fall; none for right after the warm-up",
        unit="steps",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=(*_OTHER_SCHEDULES, "decay_steps 0"),
        bounds=STEPS_FROM_0,
    )
    decay_steps: int = option(
        24000,
        "steps over which the learning rate falls to --decay_end_lr, where it stays; 0 for no decay",
        unit="steps",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=_OTHER_SCHEDULES,
        bounds=STEPS_FROM_0,
    )
    decay_end_lr: float = option(
        0.0,
        "learning rate at the end of the decay; the tables' rate ends at the same fraction of its own",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=(*_OTHER_SCHEDULES, "decay_steps 0"),
    )
    decay_power: float = option(
        2.0, "power of the polynomial decay", modes=(TRAIN,), resume=INHERIT, not_with=(*_OTHER_SCHEDULES, "decay_steps 0"), bounds=POSITIVE
    )

    @property
    def reduces_on_plateau(self) -> bool:
        """True where evaluations reduce the learning rate."""
        return self.lr_schedule == PLATEAU

    @property
    def decay_from(self) -> int:
        """The step at which the learning rate starts to fall."""
        return self.warmup_steps if self.decay_start_step is None else self.decay_start_step

    def __post_init__(self):
        check_options(self)
        check(0 <= self.decay_end_lr <= self.learning_rate, "decay_end_lr", self.decay_end_lr, "at least 0 and at most --learning_rate")
        if self.decay_steps and self.warmup_steps > self.decay_from and not self.reduces_on_plateau:
            raise ValueError(f"--warmup_steps {self.warmup_steps} is after --decay_start_step {self.decay_start_step}; expected at most that step")


@dataclass(frozen=True)
class RegularisationConfig:
    """Regularisation."""

    embedding_l2: float = option(
        0.0,
        "add half of this, times the squares of the vectors that a sample looks up, to the sample's loss; the reported loss is without it",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("embedding_trainable false",),
        bounds=FROM_0,
    )
    linear_l2: float | None = option(
        None,
        "value of --embedding_l2 for the rows of the linear part; the default is the same",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("embedding_trainable false",),
        needs=_LINEAR,
        bounds=FROM_0,
    )
    table_l2: float = option(
        0.0,
        "add this times each row to the row's gradient in every step; only for tables that --dense_update_rows updates whole, elsewhere an error",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("embedding_trainable false",),
        bounds=FROM_0,
    )
    mlp_l2: float = option(
        0.0,
        "add half of this, times the squares of the MLPs' kernels, to the loss; the reported loss is without it",
        modes=(TRAIN,),
        resume=INHERIT,
        bounds=FROM_0,
    )
    clip_norm: float | None = option(
        None,
        "greatest norm of all gradients of a step together, those of dense weights and tables with their regularisation; a greater one is reduced to "
        "it. The default is no limit",
        modes=(TRAIN,),
        resume=INHERIT,
        bounds=_SMALL,
    )
    dropout: float = option(
        0.0,
        "fraction of the MLPs' hidden units to drop in a training step, drawn anew for each sample",
        wide_and_deep=("deep_dropout",),
        modes=(TRAIN,),
        resume=INHERIT,
        bounds=Bounds("0 or more and below 1", 0, 1, below=True),
    )

    def __post_init__(self):
        check_options(self)
