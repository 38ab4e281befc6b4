"""The rows of lazy tables that planned training steps touch: expected from the law of drawn ids, or counted in the dataset."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import NamedTuple

from dataloading.batches import Ids, Split
from dataloading.feature_spec import FeatureSpec
from dataloading.sources import open_training_splits
from dataloading.touched_rows import count_touched
from model.embedding.placement import Placement
from run.expected_rows import expected_rows, known_laws
from utils.config.config import Config
from utils.console import Console
from utils.errors import UserError

EXPECTED, COUNTED = "expected", "counted"


class Touched(NamedTuple):
    """The rows of lazy tables that planned steps touch.

    Attributes:
        steps: the planned steps; None where the options and the data do not say how many.
        samples: the different samples of these steps; None as before.
        rows: the rows, by the table's index; tables of which they are not known are missing.
        found: "expected" or "counted"; empty where no rows are known.
        advice: how to learn the rows of the other tables; empty where all are known.
    """

    steps: int | None
    samples: int | None
    rows: Mapping[int, int]
    found: str
    advice: str


def planned_touches(config: Config, spec: FeatureSpec, placement: Placement, console: Console) -> Touched:
    """Return the rows of lazy tables that `--max_steps` steps touch, or all steps of an epoch.

    Args:
        config: the configuration of the plan.
        spec: the features of the dataset.
        placement: the placement of the tables.
        console: shows the progress of counting.

    Raises:
        UserError: the rows are to be counted, and the dataset cannot be read.
    """
    laws, count = known_laws(config.data, spec), config.placement.plan_touched
    with ExitStack() as opened:
        split = _train_split(config, spec, opened, console) if count or laws else None
        steps, samples = _length(config, split.num_samples if split else None)
        if samples is None:
            return Touched(None, None, {}, "", "give --max_steps")
        if count:
            return Touched(steps, samples, _counted(config, split, placement, samples, console), COUNTED, "")
    expected = {i: expected_rows(placement, i, samples, laws) for i in placement.lazy}
    rows = {i: round(number) for i, number in expected.items() if number is not None}
    return Touched(steps, samples, rows, EXPECTED if rows else "", "" if len(rows) == len(expected) else "--plan_touched counts them in the dataset")


def _train_split(config: Config, spec: FeatureSpec, opened: ExitStack, console: Console) -> Split | None:
    """Return the train split; None where there is none to read, and none has to be read."""
    try:
        if config.data.dataset_type != "synthetic" and spec.sources is None:
            raise UserError(f"--plan_touched: {spec.path} describes data to draw, and holds no rows to read; drop the flag")
        splits = open_training_splits(config.data, spec, config.run.seed, console.warn)
    except UserError:
        if config.placement.plan_touched:
            raise
        return None
    for split in splits.values():
        opened.callback(split.close)
    return splits["train"]


def _length(config: Config, rows: int | None) -> tuple[int | None, int | None]:
    """Return the planned steps and their different samples, given the rows of the train split; None where they are not known."""
    options, size = config.training, config.data.batch_size
    steps = options.steps_per_epoch or (math.ceil(rows / size) if rows else None)
    if options.max_steps != -1:
        steps = options.max_steps
    if steps is None:
        return None, None
    return steps, steps * size if rows is None else min(steps * size, rows)


def _counted(config: Config, split: Split, placement: Placement, samples: int, console: Console) -> dict[int, int]:
    places = {feature.name: place for place, feature in enumerate(split.spec.categorical)}
    features: dict[int, list[int]] = {i: [] for i in placement.lazy}
    for feature, table in zip(placement.features, placement.table_of, strict=True):
        if table in features and places[feature.source] not in features[table]:
            features[table].append(places[feature.source])
    total = samples * sum(map(len, features.values()))
    with console.progress(total, "touched rows", "ids") as progress:
        ids = Ids(None, config.data.out_of_range)
        return {i: count_touched(split, features[i], placement.rows[i], ids, samples, progress.advance) for i in placement.lazy}
