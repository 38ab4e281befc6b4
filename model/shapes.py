"""Shapes of a DLRM's dense part, by arithmetic. Imports no TensorFlow."""

import itertools
from collections.abc import Sequence


def pair_count(num_vectors: int) -> int:
    """Pairs of different vectors: P of F + 1 vectors."""
    return num_vectors * (num_vectors - 1) // 2


def layer_shapes(num_numerical: int, dim: int, bottom: Sequence[int], top: Sequence[int], num_features: int) -> list[tuple[int, int]]:
    """(in, out) of every layer of the bottom MLP, then of the top MLP, for M numerical features, D, these widths, and F categorical features."""
    stacks = (num_numerical, *bottom), (dim + pair_count(num_features + 1), *top)
    return [shape for stack in stacks for shape in itertools.pairwise(stack)]
