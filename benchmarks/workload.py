"""The model that the project builds for a benchmark, and batches for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dataloading.batches import Batch, BatchReader, Share
from dataloading.feature_spec import FeatureSpec, generator_spec
from dataloading.generate_feature_spec import ALPHA, NUM_NUMERICAL, variant_spec
from dataloading.synthetic import SyntheticSplit
from model.shapes import InteractionShape, interaction_shape, layer_shapes
from utils.config import Config, parse
from utils.distributed import World
from utils.errors import UserError
from utils.memory import available_bytes, check_fits

T15_SPEC = Path(__file__).parents[1] / "feature_spec.yaml"
WHOLE = Share()  # of every batch, by one worker
EXPONENTS = {"uniform": 0.0, "power_law": ALPHA}  # of the distributions of ids that a benchmark can be asked for


@dataclass(frozen=True)
class Workload:
    """What is trained on: V of each table, M numerical features, and the options as `dlrm.py` would get them."""

    rows: tuple[int, ...]
    config: Config
    num_numerical: int = NUM_NUMERICAL

    @property
    def names(self) -> list[str]:
        """Of the categorical features."""
        return [f"cat_{i}" for i in range(len(self.rows))]

    @property
    def batch_size(self) -> int:
        """B."""
        return self.config.data.batch_size

    @property
    def dim(self) -> int:
        """D."""
        return self.config.model.embedding_dim

    @property
    def interaction(self) -> InteractionShape:
        """As arithmetic has it."""
        return interaction_shape(self.config.model)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(in, out) of each layer of both MLPs, and of the interaction between them."""
        options = self.config.model
        return layer_shapes(self.num_numerical, options.bottom_mlp_dims, options.top_mlp_dims, [self.dim] * len(self.rows), self.interaction)

    @property
    def product_flops(self) -> int:
        """Floating-point operations of a step's matrix products in the MLPs: forward, gradient by the inputs, gradient by the weights."""
        return sum(6 * self.batch_size * inputs * outputs for inputs, outputs in self.layers)

    def batches(self, ids: str, count: int, share: Share = WHOLE) -> list[Batch]:
        """So many different batches; the distribution of the ids is one of EXPONENTS, and `share` says whose part."""
        spec = generator_spec(self.rows, self.num_numerical, EXPONENTS[ids])
        split = SyntheticSplit(spec, "train", count * self.batch_size, seed=0)
        return list(BatchReader(split, self.batch_size, share).epoch())

    def build(self, dtype: str, world: World):
        """A model of these tables, placed as `dlrm.py` places them."""
        from model.build import Precision, build_model
        from run.tables import place_tables, tables_of

        check_fits(4 * self.dim * sum(self.rows), "the tables", available_bytes())
        placement = place_tables(self.config, tables_of(self.config, self.names, self.rows), world.size, available_bytes() // world.local_size)
        return build_model(self.config.model, placement, world, self.num_numerical, 0, Precision(dtype))


def options(*flags: object) -> Config:
    """The configuration that `dlrm.py` would have with these flags."""
    return parse(["--dataset_type", "synthetic", "--log_path", "", *map(str, flags)], "")


def t15_rows() -> tuple[int, ...]:
    """Cardinalities of the 4.2-billion-parameter model, 15.6 GiB."""
    return FeatureSpec.from_yaml(T15_SPEC).cardinalities if T15_SPEC.is_file() else variant_spec("criteo_t15_synthetic").cardinalities


def check_words(flag: str, words: Sequence[str], known: Sequence[str]) -> None:
    """Raise UserError where a list of words is empty or holds one that is not known."""
    if not words or set(words) - set(known):
        raise UserError(f"--{flag} {','.join(words)}: expected one or more of {', '.join(known)}, separated by commas")
