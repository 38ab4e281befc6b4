"""The interface between a model and the rest of the application. Imports no TensorFlow."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from model.embedding.table import Feature, Table
from model.shapes import InteractionShape
from utils.config.learning import OptimizerConfig
from utils.config.options import ModelConfig

if TYPE_CHECKING:
    from model.layers.mlp import Norm
    from model.native import NativeOperations
    from model.scored_layers import DenseLayers, Read
    from model.sharded_model import ShardedModel

# Meanings of the elements along a dense weight's axis: the numerical features, the bottom MLP's output, the columns of the features' vectors, the dot
# products of all pairs of vectors, or elements that no feature changes.
NUMERICALS, BOTTOM, VECTORS, PAIRS, REST = "numericals", "bottom", "vectors", "pairs", "rest"
SCALED = "scaled"  # the columns of the numerical features' vectors
T = TypeVar("T")


@dataclass(frozen=True)
class WeightGroup:
    """Weights with an optimizer rule and a constant learning rate of their own.

    Attributes:
        name: the `group` of its tables and the first word of its dense weights' names.
        optimizer: a function that reads the name of its optimizer rule from the options.
        learning_rate: a function that reads its learning rate from the options.
    """

    name: str
    optimizer: Callable[[OptimizerConfig], str]
    learning_rate: Callable[[OptimizerConfig], float]


@dataclass(frozen=True)
class LogForm:
    """Additional log keys of a model's runs, beside the keys that every run logs.

    Attributes:
        evaluation: log key -> the name of an evaluation figure. Missing figures are left out.
        batch: the same for a training batch and, without metrics by group, for the lines logged during an evaluation; values are strings with four
            decimals.
        also: known key -> its second name, for the last line of the log.
        every: batches between two log lines during an evaluation.
        units: log key -> its unit, for keys that have a line of metadata.
        plain: log numbers with four decimals in place of strings, no lines during an evaluation, and an evaluation's step alone, without the steps of
            the run.
        of_parquet: the form of runs on Parquet files, where it is another one.
    """

    evaluation: Mapping[str, str]
    batch: Mapping[str, str]
    also: Mapping[str, str]
    every: int
    units: Mapping[str, str | None] = field(default_factory=dict)
    plain: bool = False
    of_parquet: "LogForm | None" = None

    def written(self, value: float | None) -> float | str | None:
        """Return a batch's figure as it is logged."""
        return value if value is None else round(value, 4) if self.plain else f"{value:.4f}"


@dataclass(frozen=True)
class Layers:
    """Settings of dense layers: the seed of the weights, the Keras dtype policy, the C++ operations (None where XLA compiles the layers), and the
    batch normalisation of MLPs (None for none).
    """

    seed: int
    policy: str
    native: "NativeOperations | None"
    norm: "Norm | None" = None


class Operations(Protocol[T]):
    """The operations that an exported graph consists of; T is the export format's tensor type. `Architecture.logits` composes them.

    Attributes:
        numerical: `[B, M]` float32, rounded as in the dataset; None where M is 0.
        vectors: the pooled vectors of each feature, `[B, D_f]`.
        names: the features' names.
        options: the options of the model's layers.
    """

    numerical: T | None
    vectors: Sequence[T]
    names: Sequence[str]
    options: ModelConfig

    def mlp(self, name: str, inputs: T, beside: T | None = None) -> T:
        """Apply the MLP of this name, with a ReLU after every layer except the one that gives logits; the last layer reads `beside`, too, first."""

    def cross(self, inputs: T) -> T:
        """Apply the cross layers, if the model has any."""

    def products(self, vectors: Sequence[T]) -> T:
        """Return the dot products `[B, P]` of all pairs of n vectors `[B, D]`."""

    def has(self, name: str) -> bool:
        """Return whether the model has an MLP of this name."""

    def scaled(self, name: str) -> list[T]:
        """Return the vectors of the numerical features, `[B, D]` each, times their values; `name` is that of the layer that holds them."""

    def shifted(self, logits: T, name: str) -> T:
        """Add the weight `[1]` of this name to logits `[B, 1]`."""

    def pair_sum(self, vectors: Sequence[T]) -> T:
        """Return the sum of the dot products of all pairs of vectors `[B, D]`: `[B, 1]` float32."""

    def gated(self, inputs: T, logits: T) -> T:
        """Weigh each column by twice the sigmoid of its logit: `[B, C]`, `[B, C]` -> `[B, C]` float32."""

    def bilinear(self, left: T, right: T) -> T:
        """Apply the bilinear layer to `[B, d_1]` and `[B, d_2]`: `[B, 1]` float32."""

    def concatenated(self, parts: Sequence[T]) -> T:
        """Concatenate the columns."""

    def summed(self, parts: Sequence[T]) -> T:
        """Add tensors `[B, 1]` in float32."""


class Architecture(ABC):
    """Everything that the application needs from a model, apart from the computation in its `keras.Model`.

    To add a model, write a subclass and call `model.architectures.register`; no other code names the model.

    Attributes:
        name: the name in manifests and in the model card.
        logit_parts: the MLPs whose last layers give logits: these layers have no ReLU, and their products are float32.
        groups: weights with optimizer rules of their own; `--optimizer` and `--embedding_optimizer` apply to all others.
        linear: each table has a second table of one column whose rows are terms of the logit; `looked_up` appends these tables.
        sums_products: products of the tables' rows are terms of the logit.
        one_width: all tables have the same width.
        reads_numericals: the layer that takes the numerical features, for messages.
        log: additional log keys; None for none.
        unrecorded: options that older checkpoints lack, with the values that those checkpoints were trained with.
    """

    name: str
    logit_parts: tuple[str, ...]
    groups: tuple[WeightGroup, ...] = ()
    linear: bool = False
    sums_products: bool = False
    one_width: bool = False
    reads_numericals: str = "bottom MLP"
    log: LogForm | None = None
    unrecorded: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def build(self, config: ModelConfig, embedding: Any, num_numerical: int, layers: Layers) -> "ShardedModel":
        """Return the model around an embedding, before `build_weights` is called.

        Args:
            config: the layer widths.
            embedding: a `DistributedEmbedding`, or another embedding of the same features.
            num_numerical: M.
            layers: settings of the dense layers.
        """

    @abstractmethod
    def layer_shapes(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> list[tuple[int, int]]:
        """Return (in, out) of every dense layer; `widths` holds D_f of all features that are looked up."""

    @abstractmethod
    def logits(self, operations: Operations[T]) -> T:
        """Compose the forward pass after the lookup, for exported graphs; return logits `[B, 1]`."""

    def dense_elements(self, config: ModelConfig, num_numerical: int, widths: Sequence[int]) -> int:
        """Return the number of dense weights; arguments as in `layer_shapes`."""
        plain = sum((inputs + 1) * outputs for inputs, outputs in self.layer_shapes(config, num_numerical, widths))
        return plain + sum(self.normalised(config, num_numerical))  # gamma and beta replace the bias

    def normalised(self, config: ModelConfig, num_numerical: int) -> Sequence[int]:
        """Return the width of each layer with batch normalisation: those of MLPs that a ReLU follows."""
        return ()

    def check(self, config: ModelConfig, num_categorical: int, widths: Sequence[int], num_numerical: int) -> None:  # noqa: B027 - most check nothing
        """Raise UserError where the model does not support these numbers and widths of features."""

    def check_features(self, config: ModelConfig, features: Sequence[str]) -> None:  # noqa: B027 - most check nothing
        """Raise UserError where an option names a categorical feature that the dataset lacks."""

    def looked_up(
        self, config: ModelConfig, tables: tuple[Table, ...], features: tuple[Feature, ...]
    ) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
        """Return the tables and features that the model looks up, given the dataset's. Raises UserError where names collide."""
        return tables, features

    def list_note(self, config: ModelConfig, averaged: Sequence[str]) -> str | None:
        """Return a warning about the way a checkpoint pools lists of ids; None for no warning.

        Args:
            config: the checkpoint's model options.
            averaged: names of the features whose vectors are averaged.
        """
        return None

    def native_shape(self, config: ModelConfig) -> InteractionShape | None:
        """Return the interaction for the C++ scorer; None where the scorer does not support the model."""
        return None

    def native_layers(self, config: ModelConfig, read: "Read", features: Sequence[str], num_numerical: int) -> "DenseLayers":
        """Return the dense layers for the C++ scorer, given a reader of dense weights, the names of the looked-up features, and M."""
        raise NotImplementedError

    def reads(self, weight: str, model: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """Return the axes of a dense weight that run over features, and the blocks along them in order; None for other weights.

        When a model grows, the elements of new features along these axes are zero.

        Args:
            weight: the name of the weight, `top_mlp/0/kernel` for instance.
            model: the model's options, as a checkpoint's manifest has them.
        """
        return None

    def optimizers(self, options: OptimizerConfig) -> frozenset[str]:
        """Names of the optimizer rules of the model's own groups."""
        return frozenset(group.optimizer(options) for group in self.groups)
