"""Groups of weights, each with its optimizer and learning-rate schedule: dense weights by name, and embedding tables."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from model.compilation import on_gpu
from model.native import NativeOperations, update_dense
from training.loss_scale import NO_SCALE, LossScale
from training.optimizers.rule import Rule, Slot
from training.optimizers.sgd import Sgd
from training.schedule import Plateau, Schedule


class DenseGroup:
    """Dense weights that one optimizer trains.

    Args:
        weights: the weights by name.
        rule: the optimizer's rule; Keras's optimizer of this rule computes the updates where the C++ operations do not have it.
        schedule: the schedule of the learning rate.
        name: the name of a group that has a rule of its own; empty for all others.
        native: the C++ operations; None for TensorFlow's own, which XLA can compile.
    """

    def __init__(self, weights: Mapping[str, keras.Variable], rule: Rule, schedule: Schedule, name: str = "", native: NativeOperations | None = None):
        self.name = name
        self.weights, self.schedule, self._skips_rate_0 = dict(weights), schedule, rule.divides_by_rate
        self._rule, self._optimizer = rule, rule.dense()
        self._optimizer.build(list(self.weights.values()))
        self._native, self._in_one_pass = native, rule.dense_update() if native and self.weights else None

    def slots(self) -> dict[str, tf.Variable]:
        """Return the optimizer's slots as `weight/slot`, without its learning rate and step, which every step is given."""
        found = {}
        for name, weight in self.weights.items():
            begins = f"{weight.path.replace('/', '_')}_"
            of_weight = [variable for variable in self._optimizer.variables if variable.name.startswith(begins)]
            found |= {f"{name}/{variable.name.removeprefix(begins)}": variable.value for variable in of_weight}
        return found

    def slots_by_number(self) -> dict[str, tf.Variable]:
        """Return the slots by their index among Keras's variables, as checkpoints of format 2 name them."""
        return {str(i): variable.value for i, variable in enumerate(self._optimizer.variables) if len(variable.shape)}

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        """Update the weights in step number `step`, from 0, which Adam's bias correction uses even if earlier steps were skipped."""
        if self._skips_rate_0:
            tf.cond(learning_rate > 0, lambda: self._apply(gradients, learning_rate, step), lambda: None)
        else:
            self._apply(gradients, learning_rate, step)

    def _apply(self, gradients: Sequence[tf.Tensor], learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        if self._in_one_pass:
            slots, scalars = self.slots(), self._rule.scalars(learning_rate, step)[:1]
            of_weights = [slots[f"{name}/{slot}"] for name in self.weights for slot in self._in_one_pass.slots]
            weights = [weight.value for weight in self.weights.values()]
            update_dense(self._native, self._in_one_pass, weights, of_weights, gradients, scalars)
            return
        if isinstance(self._rule, Sgd) and not on_gpu():  # in one pass over memory; Keras's optimizer takes two
            for weight, gradient in zip(self.weights.values(), gradients, strict=True):
                tf.raw_ops.ResourceApplyGradientDescent(var=weight.value.handle, alpha=learning_rate, delta=gradient)
            return
        self._optimizer.iterations.assign(tf.cast(step, self._optimizer.iterations.dtype))
        self._optimizer.learning_rate.assign(learning_rate)
        self._optimizer.apply(list(gradients), list(self.weights.values()))


class TableGroup(NamedTuple):
    """Embedding tables that one optimizer trains: those whose `Table.group` is `name`."""

    rule: Rule
    schedule: Schedule
    name: str = ""


class Groups(NamedTuple):
    """The groups of all weights that are trained."""

    dense: tuple[DenseGroup, ...]
    tables: tuple[TableGroup, ...]  # empty: the tables are frozen
    scale: LossScale = NO_SCALE  # with a loss scale, a step whose gradients overflow is skipped
    plateau: Plateau | None = None
    clip_norm: float | None = None  # the greatest norm of all gradients together, see `Clipping`; None for no limit

    def learning_rates(self, step: int, reductions: int = 0) -> tuple[float, ...]:
        """Return the learning rates of each dense group, then of each group of tables (a single 0 where they are frozen).

        Args:
            step: number of the step, from 0.
            reductions: reductions that evaluations before the step have made, see `Plateau`.
        """
        rates = [self._rate(group.schedule, step, reductions) for group in self.tables] or [0.0]
        return (*(self._rate(group.schedule, step, reductions) for group in self.dense), *rates)

    def _rate(self, schedule: Schedule, step: int, reductions: int) -> float:
        rate = schedule(step)
        return rate if self.plateau is None else self.plateau.reduced(rate, reductions)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dense groups and of the groups of tables for the log: `dense`, `tables`, and `GROUP/dense`, `GROUP/tables`."""
        kinds = (("dense", self.dense), ("tables", self.tables))
        return tuple(f"{group.name}/{kind}" if group.name else kind for kind, some in kinds for group in some)

    def own_rates(self, step: int, reductions: int = 0) -> dict[str, float]:
        """Return the learning rates of the groups that have a name; arguments as in `learning_rates`."""
        return {group.name: self._rate(group.schedule, step, reductions) for group in (*self.dense, *self.tables) if group.name}

    @property
    def num_rates(self) -> int:
        """The number of learning rates in a step."""
        return len(self.dense) + max(len(self.tables), 1)

    def table_slots(self, name: str) -> tuple[Slot, ...]:
        """Return the optimizer slots of a group's tables."""
        return next((group.rule.slots for group in self.tables if group.name == name), ())

    def slots(self) -> dict[str, tf.Variable]:
        """Return the slots of the dense weights, see `DenseGroup.slots`, and the state of the loss scale."""
        return {name: variable for group in self.dense for name, variable in group.slots().items()} | self.scale.slots()
