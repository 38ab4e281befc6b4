"""The interface of an optimizer: its slots, its update of the rows that a batch touches, and Keras's optimizer of the same formula.

This module imports no TensorFlow before a rule is applied: the plan of a placement needs the slots only.
"""

from typing import TYPE_CHECKING, NamedTuple

from model.embedding.table import Storage

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from model.embedding.touched_rows import TouchedRows
    from model.native import DenseRule

EPSILON = 1e-7  # Keras's epsilon, where a rule divides by a root


class Slot(NamedTuple):
    """An optimizer's state for each table, of the table's shape, or `[V, 1]` with one number a row."""

    name: str
    start: float = 0.0
    per_row: bool = False


class Rule:
    """An optimizer's rule for the touched rows of tables; dense weights follow Keras's optimizer with the same constants.

    Rows that a batch does not touch keep their weights and slots; a rule whose rows catch up later says so in its docstring.
    The C++ operation (`ops/row_rules.h`) has a struct of the same name, which gives the same bits as `apply`.

    Attributes:
        name: the name of the rule in checkpoints and in the C++ operation.
        slots: the slots of a table, at most two.
        constants: the constants that the C++ operation takes.
        needs_squares: `apply` takes the sum of the squares of each whole row's gradient.
        divides_by_rate: the formula divides by the learning rate, so a step with learning rate 0 is skipped: weights and slots do not change.
        linear: a row changes by its gradient times a number, so the gradients of repeated rows can be applied one by one.
        native: whether the C++ operation supports these constants.
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
        """The memory of the slots."""
        return Storage(sum(not slot.per_row for slot in self.slots), sum(slot.per_row for slot in self.slots))

    def of_width(self, dim: int) -> "Rule":
        """Return the rule for tables of D columns."""
        del dim
        return self

    def scalars(self, learning_rate: "tf.Tensor", step: "tf.Tensor") -> "tf.Tensor":
        """Return the values that change from step to step, float32 `[s]`: by default the learning rate only. `step` counts from 0."""
        import tensorflow as tf

        del step
        return tf.reshape(learning_rate, [1])

    def apply(self, rows: "TouchedRows", gradients: "tf.Tensor", scalars: "tf.Tensor", squares: "tf.Tensor | None" = None) -> None:
        """Update k touched rows.

        Args:
            rows: the rows' weights and slots.
            gradients: `[k, width]` float32, summed over the batch.
            scalars: the result of `scalars`; a `linear` rule takes None for gradients that are already multiplied by them.
            squares: with `needs_squares`, the sums of squares `[k]` over the whole rows; `gradients` may hold only some of the rows' columns.
        """
        raise NotImplementedError

    def dense_update(self) -> "DenseRule | None":
        """Return the C++ operation's update of dense weights by the formula of `dense`; None where it has none."""
        return None

    def dense(self) -> "keras.optimizers.Optimizer":
        """Return Keras's optimizer for dense weights, which makes their slots; the caller sets its learning rate in every step that it computes."""
        raise NotImplementedError
