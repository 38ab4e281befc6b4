"""The project's model for a benchmark, and batches for it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dataloading.batches import Batch, BatchReader, Share
from dataloading.feature_spec import FeatureSpec, generator_spec
from dataloading.generate_feature_spec import ALPHA, NUM_NUMERICAL, hotness_of, variant_spec
from dataloading.synthetic.split import SyntheticSplit
from model.architectures import architecture_of
from model.shapes import InteractionShape, interaction_shape
from utils.config.config import Config
from utils.dialects.command_line import parse
from utils.distributed import World
from utils.errors import UserError
from utils.memory import available_bytes, check_fits

T15_SPEC = Path(__file__).parents[1] / "feature_spec.yaml"
WHOLE = Share()  # all of every batch, for one worker
EXPONENTS = {"uniform": 0.0, "power_law": ALPHA}  # exponents of the distributions of ids that a benchmark offers
MLPERF = "mlperf"
# ids a sample of each feature in MLPerf's DLRM v2 on Criteo's data
MLPERF_HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
HOTNESS_HELP = f"ids a sample of each feature, all different, vectors summed: one number, one for each table, or {MLPERF} for MLPerf's DLRM v2"


@dataclass(frozen=True)
class Workload:
    """The workload of a benchmark: V of each table, M numerical features, h of each categorical feature, and the options as `dlrm.py` gets them."""

    rows: tuple[int, ...]
    config: Config
    num_numerical: int = NUM_NUMERICAL
    hotness: tuple[int, ...] = (1,)  # a single number holds for all features
    id_weights: bool = False  # whether the embedding takes weights of ids; `batches` draws none

    @property
    def id_rows(self) -> list[range]:
        """The range of rows in a batch's ids that each categorical feature takes."""
        each = self.spec().hotness
        return [range(sum(each[:i]), sum(each[: i + 1])) for i in range(len(each))]

    @property
    def batch_size(self) -> int:
        """The batch size B."""
        return self.config.data.batch_size

    @property
    def dim(self) -> int:
        """The width D of the tables, where all have the same width."""
        return self.config.model.embedding_dim

    @property
    def widths(self) -> tuple[int, ...]:
        """The width D_f of each categorical feature; for Wide & Deep, the widths of the deep tables, then 1 for each wide table."""
        dims = self.config.model.embedding_dim
        deep = dims if isinstance(dims, tuple) else (dims,) * len(self.rows)
        return deep + (1,) * len(deep) if architecture_of(self.config.model).linear else deep

    @property
    def interaction(self) -> InteractionShape:
        """The shape of the interaction."""
        return interaction_shape(self.config.model)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(in, out) of each layer of both MLPs and of the interaction between them; for Wide & Deep, of the deep part and the linear layer."""
        return architecture_of(self.config.model).layer_shapes(self.config.model, self.num_numerical, self.widths)

    @property
    def product_flops(self) -> int:
        """Floating-point operations of a step's matrix products in the layers: forward, gradients by the inputs, gradients by the weights."""
        return sum(6 * self.batch_size * inputs * outputs for inputs, outputs in self.layers)

    def spec(self, ids: str = "uniform") -> FeatureSpec:
        """Return the feature specification of the data; `ids`, the distribution of the ids, is a key of EXPONENTS."""
        return generator_spec(self.rows, self.num_numerical, EXPONENTS[ids], hotness=self.hotness)

    def batches(self, ids: str, count: int, share: Share = WHOLE) -> list[Batch]:
        """Return `count` different batches; `ids` is as in `spec`, and `share` selects a worker's part of them."""
        split = SyntheticSplit(self.spec(ids), "train", count * self.batch_size, seed=0)
        return list(BatchReader(split, self.batch_size, share).epoch())

    def build(self, dtype: str, world: World):
        """Build a model with these tables, placed as `dlrm.py` places them."""
        from model.build import Precision, build_model
        from run.placing import place_tables
        from run.tables import tables_and_features

        check_fits(4 * sum(rows * width for rows, width in zip(itertools.cycle(self.rows), self.widths)), "the tables", available_bytes())
        tables, features = tables_and_features(self.config, self.spec().categorical, self.rows, self.num_numerical)
        placement = place_tables(self.config, tables, world.size, available_bytes() // world.local_size, features=features)
        return build_model(self.config.model, placement, world, self.num_numerical, 0, Precision(dtype))


def options(*flags: object) -> Config:
    """Return the configuration that `dlrm.py` would have with these flags."""
    return parse(["--dataset_type", "synthetic", "--log_path", "", *map(str, flags)], "")


def t15_rows() -> tuple[int, ...]:
    """Return the cardinalities of the 4.2-billion-parameter model, 15.6 GiB."""
    return FeatureSpec.from_yaml(T15_SPEC).cardinalities if T15_SPEC.is_file() else variant_spec("criteo_t15_synthetic").cardinalities


def hotness_of_tables(text: str, rows: Sequence[int]) -> tuple[int, ...]:
    """Parse `--hotness` (see HOTNESS_HELP) into the h of each table's feature; `rows` are the tables' V.

    Raises:
        UserError: the text is invalid, has a wrong count of numbers, or a table has fewer rows than ids a sample.
    """
    try:
        found = MLPERF_HOTNESS if text == MLPERF else hotness_of(text)
    except UserError as error:
        raise UserError(f"{error}; or {MLPERF}") from None
    if len(found) not in (1, len(rows)):
        raise UserError(f"--hotness {text[:80]}: {len(found)} numbers for {len(rows)} tables; expected one for all, or one for each")
    found = found * len(rows) if len(found) == 1 else found
    for i, (hotness, count) in enumerate(zip(found, rows, strict=True)):
        if hotness > count:
            raise UserError(f"--hotness {text[:80]}: table {i} has {count} rows, and the {hotness} ids of a sample must all be different")
    return found


def check_words(flag: str, words: Sequence[str], known: Sequence[str]) -> None:
    """Raise UserError where a list of words is empty or holds an unknown word."""
    if not words or set(words) - set(known):
        raise UserError(f"--{flag} {','.join(words)}: expected one or more of {', '.join(known)}, separated by commas")
