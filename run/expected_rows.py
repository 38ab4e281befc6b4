"""The rows of tables that drawn samples name, from the power laws of their ids. Imports no TensorFlow."""

from collections.abc import Mapping

from dataloading.feature_spec import FeatureSpec
from dataloading.synthetic.touched_ids import Draws, expected_distinct, expected_hashed
from model.embedding.placement import Placement
from utils.config.data import DataConfig


def known_laws(config: DataConfig, spec: FeatureSpec) -> dict[str, Draws]:
    """Return the law of each feature's ids, of no sample yet, where it is known: of drawn data, and of stored data that this program has drawn."""
    if config.dataset_type == "synthetic" or spec.sources is None:
        alphas = [feature.alpha or 0.0 for feature in spec.categorical]
    else:
        generator = spec.metadata.get("generator")
        found = generator.get("alpha") if isinstance(generator, dict) else None
        alphas = found if isinstance(found, list) else [found] * len(spec.categorical)
    return {
        feature.name: Draws(0, feature.cardinality, float(alpha), feature.hotness, feature.weights)
        for feature, alpha in zip(spec.categorical, alphas, strict=False)
        if isinstance(alpha, int | float)
    }


def expected_rows(placement: Placement, table: int, samples: int, laws: Mapping[str, Draws]) -> float | None:
    """Return the expected number of a table's rows that so many samples name; None where the law of some of its ids is not known.

    Args:
        placement: the placement of the tables.
        table: the index of the table.
        samples: the number of samples.
        laws: the laws of sources, by name.
    """
    sources = {feature.source for feature, of in zip(placement.features, placement.table_of, strict=True) if of == table}
    if not sources or not sources <= laws.keys():
        return None
    drawn = [laws[source]._replace(samples=samples) for source in sorted(sources)]
    distinct, rows = expected_distinct(drawn), placement.rows[table]
    return expected_hashed(distinct, rows) if max(one.cardinality for one in drawn) > rows else distinct
