"""The options of learning: optimizer, learning rate, regularisation."""

import math
from dataclasses import dataclass

from utils.config.option import INHERIT, MUST_EQUAL, check, check_types, option
from utils.config.options import PLAN, TRAIN

OPTIMIZERS = ("sgd", "adam", "adagrad", "rowwise_adagrad", "ftrl", "rmsprop")  # a rule each in training/optimizers/table.py


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and learning rate."""

    optimizer: str = option(
        "sgd",
        "optimizer of tables and dense layers; tables are updated where a batch touches them. rowwise_adagrad trains the dense layers by adagrad",
        choices=OPTIMIZERS,
        modes=(TRAIN, PLAN),
        resume=MUST_EQUAL,
    )
    embedding_optimizer: str | None = option(
        None,
        "optimizer of the tables, where it is not --optimizer",
        choices=OPTIMIZERS,
        modes=(TRAIN, PLAN),
        resume=MUST_EQUAL,
        not_with=("embedding_trainable false",),
    )
    learning_rate: float = option(24.0, "learning rate after the warm-up", modes=(TRAIN,), resume=INHERIT, pytorch=("lr",))
    embedding_learning_rate: float | None = option(
        None,
        "learning rate of the tables after the warm-up, where it is not --learning_rate",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("embedding_trainable false",),
    )
    momentum: float = option(0.0, "momentum of SGD", modes=(TRAIN, PLAN), optimizers=("sgd",), resume=INHERIT)
    beta1: float = option(0.9, "decay of Adam's first moment", modes=(TRAIN,), optimizers=("adam",), resume=INHERIT)
    beta2: float = option(0.999, "decay of Adam's second moment", modes=(TRAIN,), optimizers=("adam",), resume=INHERIT)
    rho: float = option(0.9, "decay of RMSprop's mean of squares", modes=(TRAIN,), optimizers=("rmsprop",), resume=INHERIT)
    epsilon_outside_root: bool = option(
        False,
        "RMSprop divides by sqrt(mean of squares) + 1e-7, as Keras's legacy optimizers and PyTorch do, in place of Keras 3's sqrt(mean of squares + "
        "1e-7); it matters where gradients are below 3e-4, as those of a large batch's mean are",
        modes=(TRAIN,),
        optimizers=("rmsprop",),
        resume=INHERIT,
        unrecorded=False,
    )
    ftrl_l1: float = option(0.0, "FTRL's L1 regularisation", modes=(TRAIN,), optimizers=("ftrl",), resume=INHERIT)
    ftrl_l2: float = option(0.0, "FTRL's L2 regularisation", modes=(TRAIN,), optimizers=("ftrl",), resume=INHERIT)
    ftrl_power: float = option(
        -0.5, "power of FTRL's accumulator in the learning rate; others than -0.5 are slower", modes=(TRAIN,), optimizers=("ftrl",), resume=INHERIT
    )
    linear_learning_rate: float = option(
        0.02,
        "learning rate of the linear part of --interaction wide_and_deep, which FTRL trains; it stays",
        modes=(TRAIN,),
        resume=INHERIT,
        needs="interaction wide_and_deep",
    )
    deep_warmup_epochs: float | None = option(
        None,
        "the schedule of NVIDIA's Wide & Deep in place of --warmup_steps and the decay: over so many epochs the learning rate grows linearly from 0; "
        "then it is a quarter of --learning_rate, and from the middle of the rest on an eighth",
        unit="epochs",
        modes=(TRAIN,),
        resume=INHERIT,
    )
    warmup_steps: int = option(
        8000,
        "steps over which the learning rate grows linearly from 0",
        unit="steps",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("deep_warmup_epochs",),
    )
    warmup_factor: int = option(
        0,
        "the warm-up begins at 1 - 1/2^k of the learning rate for the factor k: 0 from 0, 1 from half of it, 2 from three quarters",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("deep_warmup_epochs",),
    )
    decay_start_step: int | None = option(
        48000,
        "step at which the learning rate starts to fall; none: right after the warm-up",
        unit="steps",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("deep_warmup_epochs", "decay_steps 0"),
    )
    decay_steps: int = option(
        24000,
        "steps over which it falls to --decay_end_lr, where it stays; 0: it does not fall",
        unit="steps",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("deep_warmup_epochs",),
    )
    decay_end_lr: float = option(
        0.0,
        "learning rate where the decay ends; that of the tables ends at the same part of its own",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("deep_warmup_epochs", "decay_steps 0"),
    )
    decay_power: float = option(
        2.0, "power of the polynomial decay", modes=(TRAIN,), resume=INHERIT, not_with=("deep_warmup_epochs", "decay_steps 0")
    )

    @property
    def decay_from(self) -> int:
        """The step at which the learning rate starts to fall."""
        return self.warmup_steps if self.decay_start_step is None else self.decay_start_step

    @property
    def of_tables(self) -> str:
        """The name of the tables' optimizer."""
        return self.embedding_optimizer or self.optimizer

    def __post_init__(self):
        check_types(self)
        check(math.isfinite(self.learning_rate) and self.learning_rate > 0, "learning_rate", self.learning_rate, "a positive number")
        table_rate = self.embedding_learning_rate
        check(table_rate is None or (math.isfinite(table_rate) and table_rate > 0), "embedding_learning_rate", table_rate, "a positive number")
        linear, warmup = self.linear_learning_rate, self.deep_warmup_epochs
        check(math.isfinite(linear) and linear > 0, "linear_learning_rate", linear, "a positive number")
        check(warmup is None or (math.isfinite(warmup) and warmup >= 0), "deep_warmup_epochs", warmup, "0 or more epochs")
        for name in ("ftrl_l1", "ftrl_l2"):
            check(math.isfinite(getattr(self, name)) and getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        check(math.isfinite(self.ftrl_power) and self.ftrl_power <= 0, "ftrl_power", self.ftrl_power, "0 or less")
        for name in ("momentum", "beta1", "beta2", "rho"):
            check(0 <= getattr(self, name) < 1, name, getattr(self, name), "at least 0 and below 1")
        for name in ("warmup_steps", "decay_start_step"):
            check((getattr(self, name) or 0) >= 0, name, getattr(self, name), "0 or more steps")
        check(self.decay_steps >= 0, "decay_steps", self.decay_steps, "0 or more steps")
        check(0 <= self.warmup_factor <= 64, "warmup_factor", self.warmup_factor, "at least 0 and at most 64")
        check(0 <= self.decay_end_lr <= self.learning_rate, "decay_end_lr", self.decay_end_lr, "at least 0 and at most --learning_rate")
        check(math.isfinite(self.decay_power) and self.decay_power > 0, "decay_power", self.decay_power, "a positive number")
        if self.decay_steps and self.warmup_steps > self.decay_from:
            raise ValueError(f"--warmup_steps {self.warmup_steps} is after --decay_start_step {self.decay_start_step}; expected warm-up to end first")


@dataclass(frozen=True)
class RegularisationConfig:
    """Regularisation."""

    embedding_l2: float = option(
        0.0,
        "adds half of this, times the squares of the vectors that a sample looks up, to the sample's loss; not to the reported one",
        modes=(TRAIN,),
        resume=INHERIT,
        not_with=("embedding_trainable false",),
    )
    mlp_l2: float = option(
        0.0, "adds half of this, times the squares of the MLPs' kernels, to the loss; not to the reported one", modes=(TRAIN,), resume=INHERIT
    )
    dropout: float = option(
        0.0, "share of the MLPs' hidden units that a training step leaves out, others for each sample", modes=(TRAIN,), resume=INHERIT
    )

    def __post_init__(self):
        check_types(self)
        for name in ("embedding_l2", "mlp_l2"):
            check(math.isfinite(getattr(self, name)) and getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        check(0 <= self.dropout < 1, "dropout", self.dropout, "0 or more and below 1")
