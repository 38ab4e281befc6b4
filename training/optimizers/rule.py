"""What an optimizer is here: the slots it keeps, how it changes the rows that a batch touches, and Keras's optimizer of the same formula.

Imports no TensorFlow before a rule is applied: the plan of a placement asks for slots only.
"""

from typing import TYPE_CHECKING, NamedTuple

from model.embedding.table import Storage

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from model.embedding.touched_rows import TouchedRows

EPSILON = 1e-7  # Keras's, where a rule divides by a root


class Slot(NamedTuple):
    """State beside each table, of the table's shape or one number a row `[V, 1]`."""

    name: str
    start: float = 0.0
    per_row: bool = False


class Rule:
    """An optimizer's rule: of a table's touched rows, and of dense weights by Keras with the same constants.

    Rows that a batch does not touch keep their weights and slots; a rule that makes up for it later says so.
    The C++ operation (`ops/row_update.cc`) has a struct of the same name, which gives the same bits as `apply`.

    Attributes:
        name: of the rule, in checkpoints and in the C++ operation.
        slots: at most two.
        constants: of the C++ operation.
        needs_squares: `apply` is given the sum of the squares of each whole row's gradient.
        divides_by_rate: a step with learning rate 0 is left out: it changes neither weights nor slots.
        linear: the change of a row is its gradient times a number, so that repeated rows may be changed one by one.
        native: whether the C++ operation has these constants' case.
    """

    name = ""
    slots: tuple[Slot, ...] = ()
    constants: tuple[float, ...] = ()
    needs_squares = False
    divides_by_rate = False
    linear = False
    native = True

    @property
    def storage(self) -> Storage:
        """What the slots take."""
        return Storage(sum(not slot.per_row for slot in self.slots), sum(slot.per_row for slot in self.slots))

    def of_width(self, dim: int) -> "Rule":
        """The rule for tables of D columns."""
        del dim
        return self

    def scalars(self, learning_rate: "tf.Tensor", step: "tf.Tensor") -> "tf.Tensor":
        """What changes from step to step, float32 `[s]`; `step` counts from 0. The learning rate, unless a rule needs more."""
        import tensorflow as tf

        del step
        return tf.reshape(learning_rate, [1])

    def apply(self, rows: "TouchedRows", gradients: "tf.Tensor", scalars: "tf.Tensor", squares: "tf.Tensor | None" = None) -> None:
        """Update k touched rows.

        Args:
            rows: weights and slots.
            gradients: `[k, width]` float32, summed over the batch.
            scalars: see `scalars`; a `linear` rule takes None for gradients that were multiplied by them.
            squares: `[k]`, with `needs_squares`: over the whole row, of which these columns may be a part.
        """
        raise NotImplementedError

    def dense(self) -> "keras.optimizers.Optimizer":
        """Keras's optimizer for dense weights; the learning rate is set every step."""
        raise NotImplementedError
