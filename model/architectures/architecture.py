"""A model as the rest of the application sees it. Imports no TensorFlow."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from model.embedding.table import Feature, Table
from model.shapes import InteractionShape
from utils.config.learning import OptimizerConfig
from utils.config.options import ModelConfig

if TYPE_CHECKING:
    from model.native import NativeOperations
    from model.sharded_model import ShardedModel

# What the elements of a dense weight's axis stand for: the numerical features, the bottom MLP's output, the columns of the features' vectors, or the
# products of all pairs of vectors.
NUMERICALS, BOTTOM, VECTORS, PAIRS = "numericals", "bottom", "vectors", "pairs"
T = TypeVar("T")


@dataclass(frozen=True)
class WeightGroup:
    """Weights with a rule and a constant learning rate of their own.

    Attributes:
        name: `group` of its tables, and the first word of the names of its dense weights.
        optimizer: its rule.
        learning_rate: reads its rate from the options.
    """

    name: str
    optimizer: str
    learning_rate: Callable[[OptimizerConfig], float]


@dataclass(frozen=True)
class LogForm:
    """What the log of a model's run has beside the keys that all have.

    Attributes:
        evaluation: keys of an evaluation, and of which of its figures each is the name; a figure that there is not is left out.
        batch: the same of a training batch, and of the lines while a split is evaluated; their values are texts of four digits.
        also: other names of figures of the last line: of the known key its second name.
        every: batches between two lines of an evaluation.
    """

    evaluation: Mapping[str, str]
    batch: Mapping[str, str]
    also: Mapping[str, str]
    every: int


@dataclass(frozen=True)
class Layers:
    """How dense layers are made: the seed of their weights, the policy of their dtypes, and the C++ operations, None where XLA compiles them."""

    seed: int
    policy: str
    native: "NativeOperations | None"


class Operations(Protocol[T]):
    """What an exported graph is made of; T stands for a tensor of the format. `Architecture.logits` composes them.

    Attributes:
        numerical: `[B, M]` float32, rounded as in the dataset; None where M is 0.
        vectors: of each feature `[B, D_f]`, pooled.
    """

    numerical: T | None
    vectors: Sequence[T]

    def mlp(self, name: str, inputs: T) -> T:
        """Apply the layers of this name, with ReLU after each but the one that gives logits."""

    def cross(self, inputs: T) -> T:
        """Apply the cross layers, as far as there are."""

    def products(self, vectors: Sequence[T]) -> T:
        """Return the dot products `[B, P]` of all pairs of n vectors `[B, D]`."""

    def concatenated(self, parts: Sequence[T]) -> T:
        """Put the columns side by side."""

    def summed(self, parts: Sequence[T]) -> T:
        """Add tensors `[B, 1]` in float32."""


class Architecture(ABC):
    """All that the application asks of a model besides the computation of its `keras.Model`.

    A new model is a subclass and `model.architectures.register`; nothing else names it.

    Attributes:
        name: in manifests and the model card.
        logit_parts: the MLPs whose last layers give logits: they have no ReLU, and their products are float32.
        groups: weights with rules of their own; all others go by `--optimizer` and `--embedding_optimizer`.
        linear: there is for each table a second one, of one column, whose rows are terms of the logit; `looked_up` adds them after the others.
        one_width: all tables have the same width.
        reads_numericals: the layer that the numerical features go into, for messages.
        log: what its log has besides; None for nothing.
        unrecorded: options that its checkpoints may lack, as they were before there were such options.
    """

    name: str
    logit_parts: tuple[str, ...]
    groups: tuple[WeightGroup, ...] = ()
    linear: bool = False
    one_width: bool = False
    reads_numericals: str = "bottom MLP"
    log: LogForm | None = None
    unrecorded: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def build(self, config: ModelConfig, embedding: Any, num_numerical: int, layers: Layers) -> "ShardedModel":
        """Return the model around an embedding; `build_weights` has not been called.

        Args:
            config: layer widths.
            embedding: `DistributedEmbedding`, or another that looks up the same features.
            num_numerical: M.
            layers: how they are made.
        """

    @abstractmethod
    def layer_shapes(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> list[tuple[int, int]]:
        """Return (in, out) of every dense layer; `widths`: D_f of all features that are looked up."""

    @abstractmethod
    def logits(self, operations: Operations[T]) -> T:
        """Compose the forward pass after the lookup, for exported graphs: `[B, 1]`."""

    def dense_elements(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> int:
        """Return how many dense weights there are; arguments as in `layer_shapes`."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layer_shapes(config, num_numerical, widths))

    def check(self, config: ModelConfig, num_categorical: int, widths: Sequence[int], num_numerical: int) -> None:  # noqa: B027 - most check nothing
        """Raise UserError where the model cannot be made of so many features of these widths."""

    def looked_up(
        self, config: ModelConfig, tables: tuple[Table, ...], features: tuple[Feature, ...]
    ) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
        """Return the tables and features that the model looks up, of those of the dataset. Raises UserError where names meet."""
        return tables, features

    def list_note(self, config: ModelConfig, averaged: Sequence[str]) -> str | None:
        """Return a warning about a checkpoint's way with lists of ids; None for none.

        Args:
            config: of the checkpoint.
            averaged: names of the features whose vectors are averaged.
        """
        return None

    def native_shape(self, config: ModelConfig) -> InteractionShape | None:
        """Return what the C++ scorer needs to know of the model; None where it cannot stand for TensorFlow."""
        return None

    def reads(self, weight: str) -> tuple[int, tuple[str, ...]] | None:
        """Return which axis of a dense weight stands for the features, and what its elements are, in this order; None of other weights.

        A model that grows gets zeros at the places of new features.

        Args:
            weight: its name, `top_mlp/0/kernel` for instance.
        """
        return None

    @property
    def optimizers(self) -> frozenset[str]:
        """The rules that train some of its weights, whatever the options say."""
        return frozenset(group.optimizer for group in self.groups)
