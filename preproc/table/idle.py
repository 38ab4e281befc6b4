"""Warnings about flags of preproc.table that are given but have no effect, since the user expects one."""

import argparse
from collections.abc import Callable, Iterable

from preproc.reading.files import CSV, form_of
from preproc.reading.stores import Source
from preproc.table.columns import Plan
from preproc.table.reading import Reading
from preproc.table.splits import KEY, ROWS, SplitRule
from utils.encoding.recipe import LIST, TIME

_OF_CSV = ("separator", "quote", "columns", "data_columns")
_OF_LISTS = ("list_separator", "max_hotness", "pooling")
_OF_VOCABULARIES = ("frequency_threshold", "max_ids")


def say_idle(args: argparse.Namespace, plan: Plan, rule: SplitRule, reading: Reading, files: Iterable[Source], warn: Callable[[str], None]) -> None:
    """Warn of each flag that has no effect, once the column types are known.

    Args:
        args: the command line; flags that are not given are None.
        plan: the plan of the features.
        rule: the rule that divides rows into splits.
        reading: the options for reading files.
        files: all input files.
        warn: called with each message.
    """
    given, forms = [flag for flag in _OF_CSV if getattr(args, flag) is not None], []
    if given:
        forms = [form for path in files if (form := form_of(path, reading.form)).kind == CSV]
    if given and not forms:
        warn(f"{_named(given)} no effect: no file is CSV")
    elif args.columns is not None and not any(form.names for form in forms):
        warn("--columns has no effect: every file has a header with these names")
    recipes, drawn = plan.features.values(), rule.by in (KEY, ROWS) or args.negative_rate is not None
    for flags, reads, why in (
        (_OF_LISTS, any(recipe.kind == LIST for recipe in recipes), "no column is a list (--lists)"),
        (("time_unit",), any(recipe.kind == TIME for recipe in recipes), "no column is a time (--times)"),
        (_OF_VOCABULARIES, any(recipe.has_vocabulary for recipe in recipes), "no column has a vocabulary (--categorical)"),
        (("numerical_transform",), bool(plan.of("numbers")), "no column is numerical (--numerical)"),
        (("seed",), drawn, "no rows are drawn by a hash (--test_fraction without --split_by, --negative_rate)"),
    ):
        if not reads and (given := [flag for flag in flags if getattr(args, flag) is not None]):
            warn(f"{_named(given)} no effect: {why}")


def _named(flags: list[str]) -> str:
    return f"{', '.join(f'--{flag}' for flag in flags)} {'has' if len(flags) == 1 else 'have'}"
