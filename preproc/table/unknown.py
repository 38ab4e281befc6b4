"""Shares of values that are not in the vocabularies; a larger share than in training indicates that a column has changed."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl

from dataloading.feature_spec import FeatureSpec
from preproc.shared import polars_engine as engine
from preproc.table.columns import Plan
from preproc.table.fit import coded, read_vocabulary
from preproc.table.splits import TRAIN
from preproc.table.staging import StagedRows
from preproc.table.writing import Filled

UNKNOWN = "unknown_values"  # key in a dataset's metadata: each feature's share of unknown values in the training rows, if not 0
_MOST, _TIMES, _SHOWN = 0.5, 10, 3


def unknown_shares(plan: Plan, filled: Mapping[str, Mapping[str, Filled]], old: FeatureSpec | None) -> dict[str, float] | None:
    """Return each feature's share of unknown values in the training rows; features without unknown values are left out.

    A value is unknown if it is rarer than the frequency threshold or beyond the maximum number of ids.

    Args:
        plan: the plan of the features.
        filled: the counts of each split's features.
        old: the dataset whose vocabularies are used; None for new ones.

    Returns:
        the shares; None where there are no training rows and the older dataset does not record them.
    """
    if TRAIN in filled:
        found = {name: filled[TRAIN][name] for name, recipe in plan.features.items() if recipe.has_vocabulary}
        return {name: round(one.unknown / one.values, 6) for name, one in found.items() if one.unknown}
    known = old.metadata.get(UNKNOWN) if old is not None else None
    return dict(known) if isinstance(known, Mapping) else None


def unknown_lines(
    plan: Plan,
    filled: Mapping[str, Mapping[str, Filled]],
    trained: Mapping[str, float] | None,
    rows: Callable[[str], StagedRows],
    vocabularies: Path,
) -> Iterator[str]:
    """Yield a warning for each split and feature with more than half of the values unknown, and at least ten times the share in training.

    Args:
        plan: the fitted plan.
        filled: the counts of each split's features.
        trained: the result of `unknown_shares`.
        rows: returns the rows of a split.
        vocabularies: the folder that holds the vocabularies.
    """
    for split, features in filled.items():
        for name, found in features.items():
            share, before = found.unknown / max(found.values, 1), None if trained is None else trained.get(name, 0.0)
            if split == TRAIN or share <= _MOST or share < _TIMES * (before or 0.0):
                continue
            there = "not recorded" if before is None else f"{before:.1%}"
            yield (
                f"{split} split, feature {name}: {found.unknown:,} of {found.values:,} values are unknown ({share:.1%}; in training: {there}), "
                f"the most frequent: {', '.join(_commonest(rows(split), plan, name, vocabularies))}; has the form of the column changed?"
            )


def _commonest(rows: StagedRows, plan: Plan, feature: str, vocabularies: Path) -> list[str]:
    counts = engine.text_counts(coded(rows, feature, plan.features[feature]))
    unknown = counts.join(read_vocabulary(vocabularies, feature), on=engine.VALUE, how="anti")
    shown = unknown.sort("count", engine.VALUE, descending=[True, False]).head(_SHOWN)
    return [f"{value!r:.60} ({count:,})" for value, count in shown.select(engine.VALUE, pl.col("count")).rows()]
