"""Arithmetic of the shapes of a DLRM's dense part. Imports no TensorFlow."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from utils.config.options import CROSS, DOT, PARALLEL, ModelConfig


def pair_count(num_vectors: int) -> int:
    """Return the number of pairs of different vectors; F + 1 vectors make P pairs."""
    return num_vectors * (num_vectors - 1) // 2


class InteractionShape(NamedTuple):
    """The interaction of the bottom MLP's output and the embeddings: "dot", "cat", or "cross" with `layers` layers of rank `projection`.

    A `projection` of 0 means full rank. The last layer of the top MLP reads the output of `parallel` cross layers beside its hidden layers' output.
    """

    kind: str = DOT
    layers: int = 0
    projection: int = 0
    parallel: bool = False

    def width(self, bottom: int, widths: Sequence[int]) -> int:
        """Return the width of the top MLP's input; `bottom`: width of the bottom MLP's output (0 without one), `widths`: D_f of the features."""
        return bottom + (pair_count(len(widths) + (bottom > 0)) if self.kind == DOT else sum(widths))

    def products(self, width: int) -> list[tuple[int, int]]:
        """Return (in, out) of the interaction's products with weights, for inputs of this width; the first of each pair has no bias."""
        if self.kind != CROSS:
            return []
        return ([(width, self.projection), (self.projection, width)] if self.projection else [(width, width)]) * self.layers


DOTS = InteractionShape()


def interaction_shape(config: ModelConfig) -> InteractionShape:
    """Return the interaction shape of a model's options."""
    crosses = config.interaction == CROSS
    parallel = crosses and config.structure == PARALLEL
    return InteractionShape(config.interaction, config.num_cross_layers * crosses, config.cross_layer_projection_dim * crosses, parallel)


def layer_shapes(
    num_numerical: int, bottom: Sequence[int], top: Sequence[int], widths: Sequence[int], interaction: InteractionShape = DOTS
) -> list[tuple[int, int]]:
    """Return (in, out) of every layer of the bottom MLP, the interaction and the top MLP.

    Args:
        num_numerical: M; without numerical features there is no bottom MLP.
        bottom, top: widths of the MLPs' layers.
        widths: D_f of the categorical features.
        interaction: the interaction of the features.
    """
    bottom = bottom if num_numerical else ()
    width = interaction.width(bottom[-1] if bottom else 0, widths)
    of_bottom, of_top = (list(itertools.pairwise(stack)) for stack in ((num_numerical, *bottom), (width, *top)))
    if interaction.parallel:
        hidden, outputs = of_top[-1]
        of_top[-1] = (width + hidden, outputs)
    return [*of_bottom, *interaction.products(width), *of_top]


def dense_elements(num_numerical: int, bottom: Sequence[int], top: Sequence[int], widths: Sequence[int], interaction: InteractionShape = DOTS) -> int:
    """Return the number of weights of both MLPs and the interaction; arguments as in `layer_shapes`."""
    shapes = layer_shapes(num_numerical, bottom, top, widths, interaction)
    # The first product of each cross layer has no bias, so its `projection` bias terms are subtracted again.
    return sum((inputs + 1) * outputs for inputs, outputs in shapes) - interaction.layers * interaction.projection
