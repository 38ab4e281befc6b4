"""The update of the dense weights by the summed gradients of a step."""

from collections.abc import Sequence

import tensorflow as tf

from model.ordered_sums import unpacked
from model.sharded_model import ShardedModel
from training.groups import Groups
from training.regularisation import Regularisation


class DenseUpdate:
    """Updates the dense weights.

    Args:
        model: the model, built.
        groups: the groups of weights.
        regularisation: the terms that are minimised beside the loss.
        packs: the gradients come as a single vector.
    """

    def __init__(self, model: ShardedModel, groups: Groups, regularisation: Regularisation, packs: bool):
        self._model, self._groups, self._regularisation, self._packs = model, groups, regularisation, packs

    def unpacked(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the gradients as one tensor for each weight."""
        if not self._packs:
            return list(gradients)
        return unpacked(gradients[0], [weight.shape for weight in self._model.dense_weights().values()])

    def by_name(self, gradients: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the gradients with those of the regularisation, by the weights' names."""
        weights = self._model.dense_weights()
        return self._regularisation.by_weights(dict(zip(weights, self.unpacked(gradients), strict=True)), weights)

    def apply(self, gradients: Sequence[tf.Tensor], rates: tf.Tensor, step: tf.Tensor, divisor: tf.Tensor | None) -> None:
        """Update the weights in place, each group by its learning rate; `divisor` divides all gradients, None for none."""
        by_name = self.by_name(gradients)
        if divisor is not None:
            by_name = {name: gradient / divisor for name, gradient in by_name.items()}
        for number, group in enumerate(self._groups.dense):
            group.apply([by_name[name] for name in group.weights], rates[number], step)
