"""`--mode plan`: the placement of the tables of a feature specification."""

import math

from dataloading.feature_spec import FeatureSpec
from dataloading.sources import read_spec, table_rows
from model.architectures import architecture_of
from model.embedding.placement import Placement
from model.embedding.plan import as_json, as_table, check_shared, lazy_report, report
from run.expected_rows import known_laws
from run.placing import place_tables
from run.table_storage import batches_note, stored_tables, table_memory, with_held, without_lazy, worker_note
from run.tables import overruled_widths, tables_and_features, with_widths
from run.touched import planned_touches
from training.optimizers.table import table_rule
from utils.config.config import Config
from utils.config.ineffective import warnings
from utils.console import Console


def show_plan(config: Config, program: str) -> None:
    """Print the plan. Allocates nothing and needs no file except the specification; `--plan_touched` reads the ids of the train split.

    Raises:
        UserError: the specification or the ids cannot be read, the tables do not fit, or the batch cannot be divided evenly.
    """
    console = Console(program, names=config.names)
    for line in warnings(config, architecture_of(config.model).optimizers(config.optimizer)):
        console.warn(line)
    workers, batch_size = config.placement.plan_workers, config.data.batch_size
    check_shared("batch_size", batch_size, workers)
    spec = read_spec(config.data, config.features, "embedding_dim" not in config.given)
    host_memory = 0 if config.placement.cpu_offloading_threshold_gb is None else math.inf
    if overruled := overruled_widths(config.model, spec.categorical):
        console.warn(overruled)
    config = with_widths(config, spec.categorical)
    tables, features = tables_and_features(config, spec.categorical, table_rows(config.data, spec), len(spec.numerical))
    tables = with_held(config, stored_tables(config, tables), memory := table_memory(config, math.inf))
    if useless := without_lazy(config, tables):
        console.warn(useless)
    placement = place_tables(config, tables, workers, math.inf, host_memory, features=features)
    architecture = architecture_of(config.model)
    dense = architecture.dense_elements(config.model, len(spec.numerical), placement.widths)
    rule = table_rule(config.optimizer, placement.widths[0])
    plan = report(
        placement,
        batch_size,
        2 if config.device.amp else 4,
        dense,
        rule.needs_squares,
        sum(architecture.normalised(config.model, len(spec.numerical))),
    )
    if placement.lazy:
        plan["lazy"] = _of_lazy(config, spec, placement, memory, console)
    print(as_json(plan) if config.placement.plan_format == "json" else as_table(plan))


def _of_lazy(config: Config, spec: FeatureSpec, placement: Placement, memory: float, console: Console) -> dict:
    """Return the plan of the lazy tables as plain values."""
    given = config.placement.worker_memory_gb
    available = math.inf if given is None else given * 1e9
    for note in (batches_note(config, placement, memory, known_laws(config.data, spec)), worker_note(placement, memory, available)):
        if note:
            console.warn(note)
    touched = planned_touches(config, spec, placement, console)
    return {
        "steps": touched.steps,
        "samples": touched.samples,
        "touched": touched.found or None,
        "advice": touched.advice or None,
        **lazy_report(placement, memory, touched.rows),
    }
