"""The plan of a dataset: how each column of a table is used, as given by columns.yaml or as inferred.

label: rating >= 4
group: session
weight: importance
features:
  user: {kind: categorical, frequency_threshold: 2}
  genres: {kind: list, separator: "|", max_hotness: 5, pooling: mean}
  tags: {kind: list, weights: tag_weights}
  price: {kind: numerical, transform: log1p, clip: [0, 1000]}
  position: {kind: categorical, training_only: 1}
  hour: {kind: time, column: timestamp, part: hour}
  user_hour: {kind: cross, columns: [user, hour], hash_buckets: 10000}
ignore: [note]
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dataloading.feature_spec import FeatureSpec
from dataloading.features import MEAN, DatasetError
from dataloading.training_only import served_values
from utils.encoding import kinds, transforms
from utils.encoding.columns import Comparison, parsed_label
from utils.encoding.recipe import CATEGORICAL, CROSS, IDS, LIST, Recipe, recipe_of
from utils.yaml_file import load_yaml

FILE = "columns.yaml"
_SECTIONS = ("label", "group", "weight", "features", "ignore")


@dataclass(frozen=True)
class Plan:
    """The contents of a dataset: features in the model's order, and the columns of the label, the group and the weight.

    `label` is a column or a comparison, None where rows have no label. `ignored` are the columns that are left out on purpose. `weight` is None
    where every row counts once, and where rows have no label.
    """

    features: Mapping[str, Recipe]
    label: str | None = None
    group: str | None = None
    ignored: tuple[str, ...] = ()
    weight: str | None = None

    @property
    def comparison(self) -> Comparison | None:
        """The label, parsed."""
        return None if self.label is None else parsed_label(self.label)

    @property
    def columns(self) -> list[str]:
        """Every column that the plan reads, each once."""
        found = [name for recipe in self.features.values() for name in recipe.inputs]
        if self.label is not None:
            found.append(self.comparison.column)
        return list(dict.fromkeys([*found, *(name for name in (self.group, self.weight) if name is not None)]))

    @property
    def unread(self) -> frozenset[str]:
        """The columns that scores do not read: those that only features for training only are made of."""
        only = {name for recipe in self.features.values() if recipe.training_only is not None for name in recipe.inputs}
        return frozenset(only - {name for recipe in self.features.values() if recipe.training_only is None for name in recipe.inputs} - {self.group})

    @property
    def list_columns(self) -> frozenset[str]:
        """The columns that may hold lists."""
        return frozenset(name for recipe in self.features.values() if recipe.kind == LIST for name in recipe.inputs)

    def of(self, gives: str) -> dict[str, Recipe]:
        """Return the features of one output: `ids`, `lists` or `numbers`."""
        return {name: recipe for name, recipe in self.features.items() if recipe.gives == gives}

    def to_yaml(self) -> str:
        """Return the text of columns.yaml, which a user may edit and pass back; fitted values are left out."""
        content: dict[str, Any] = {} if self.label is None else {"label": self.label}
        if self.group is not None:
            content["group"] = self.group
        if self.weight is not None:
            content["weight"] = self.weight
        content["features"] = {}
        for name, recipe in self.features.items():
            entry = replace(recipe, mean=None, std=None, boundaries=None, values=None, stripped=False, parts=()).to_dict()
            if entry.get("column") == name:
                del entry["column"]
            content["features"][name] = entry
        content["ignore"] = list(self.ignored)
        lines = [f"{key}:\n" if key == "features" else yaml.safe_dump({key: value}, width=140) for key, value in content.items()]
        features = [
            f"  {yaml.safe_dump({name: entry}, sort_keys=False, default_flow_style=True, width=10**6).strip()[1:-1]}\n"
            for name, entry in content["features"].items()
        ]
        lines.insert(list(content).index("features") + 1, "".join(features))
        return "".join(lines)


def plan_of_file(path: Path) -> Plan:
    """Load a plan from columns.yaml. Raises DatasetError where the file is not valid, with the feature and the option."""
    content = load_yaml(path)
    if not isinstance(content, Mapping):
        raise DatasetError(f"{path}: expected the sections {', '.join(_SECTIONS)}")
    for section in content:
        if section not in _SECTIONS:
            raise DatasetError(f"{path}: section {str(section)[:60]!r} is not known, expected {', '.join(_SECTIONS)}")
    features = content.get("features")
    if not isinstance(features, Mapping) or not features:
        raise DatasetError(f"{path}: features: expected a mapping of features to their kinds")
    ignored = content.get("ignore") or []
    if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
        raise DatasetError(f"{path}: ignore: expected a list of columns")
    for section in ("label", "group", "weight"):
        if not isinstance(content.get(section, ""), str):
            raise DatasetError(f"{path}: {section}: expected a text, found {str(content[section])[:60]!r}")
    recipes = {}
    for name, entry in features.items():
        if not isinstance(name, str):
            raise DatasetError(f"{path}: features: {str(name)[:60]!r} is no text; put the name in quotes")
        try:
            recipes[name] = recipe_of(name, entry)
        except ValueError as error:
            raise DatasetError(f"{path}: feature {name}: {error}") from None
    plan = Plan(recipes, content.get("label"), content.get("group"), tuple(ignored), content.get("weight"))
    return checked(resolved(plan, f"{path}: "), f"{path}: ")


def plan_of_dataset(spec: FeatureSpec) -> Plan:
    """Return the fitted plan by which another dataset was made. Raises DatasetError where its metadata hold no plan."""
    known = spec.metadata.get(transforms.NAME)
    if spec.metadata.get("source") != transforms.TABLE or not isinstance(known, Mapping):
        raise DatasetError(f"{spec.path}: has no metadata.transforms of preproc.table; expected a dataset that preproc.table wrote (--vocabulary)")
    features, served = {}, served_values(spec)
    for name, entry in known.items():
        try:
            recipe = recipe_of(name, entry, fitted=True)
        except ValueError as error:
            raise DatasetError(f"{spec.path}: metadata.transforms: feature {name}: {error}") from None
        features[name] = recipe if name in served else replace(recipe, training_only=None)  # the specification counts, which a user may edit
    weight = None if spec.weight is None else spec.metadata.get("weight")
    return checked(Plan(features, spec.metadata.get("label"), spec.metadata.get("group"), weight=weight), f"{spec.path}: ")


def resolved(plan: Plan, where: str = "") -> Plan:
    """Return the plan with the parts of each cross: the features that the cross names, or else the columns.

    Raises:
        DatasetError: a part is no categorical feature, hour or weekday, so it has no single text to join.
    """
    features = dict(plan.features)
    for name, recipe in plan.features.items():
        if recipe.kind != CROSS or recipe.parts:
            continue
        parts = []
        for column in recipe.columns:
            part = plan.features.get(column)
            if part is not None and (part.gives != IDS or part.buckets is not None or part.kind == CROSS):
                raise DatasetError(f"{where}feature {name}: {column} cannot be part of a cross; expected categorical features, hours or weekdays")
            parts.append(Recipe(CATEGORICAL, (column,)) if part is None else replace(part, frequency_threshold=0, max_ids=None, hash_buckets=None))
        features[name] = replace(recipe, parts=tuple(replace(part, table=None, embedding_dim=None) for part in parts))
    return replace(plan, features=features)


def undecided(plan: Plan) -> Plan:
    """Return the plan with value kinds marked as to be inferred from the training rows."""
    return replace(plan, features={name: kinds.undecided(recipe) for name, recipe in plan.features.items()})


def checked(plan: Plan, where: str = "") -> Plan:
    """Return the plan unchanged if it is valid.

    Raises:
        DatasetError: the label is neither a column nor a comparison, a feature reads the column of the label or of the weight, the weight is the
            label, features of one table differ in how ids are assigned, weights of ids have no effect, scores read the column of a feature for
            training only, or no feature gives ids.
    """
    if plan.label is not None:
        try:
            column = plan.comparison.column
        except ValueError as error:
            raise DatasetError(f"{where}label {error}") from None
        for name, recipe in plan.features.items():
            if column in recipe.inputs:
                raise DatasetError(f"{where}feature {name}: reads {column}, the label's column, and so reveals the label; remove one of them")
        if plan.weight == column and plan.comparison.sign is None:
            raise DatasetError(f"{where}weight {plan.weight}: is the label, so every row with label 0 would have weight 0; expected another column")
    if plan.weight is not None and (name := next((name for name, recipe in plan.features.items() if plan.weight in recipe.inputs), None)):
        raise DatasetError(f"{where}feature {name}: reads {plan.weight}, the weight's column, which rows to predict lack; remove one of them")
    for name, recipe in plan.features.items():
        check_weighted_mean(name, recipe, where)
    _check_training_only(plan, where)
    if not any(recipe.gives != "numbers" for recipe in plan.features.values()):
        raise DatasetError(f"{where}no feature is categorical, but the model needs at least one: name it with --categorical COLUMN")
    first: dict[str, tuple[str, Recipe]] = {}
    for name, recipe in plan.features.items():
        if recipe.table is not None:
            other, known = first.setdefault(recipe.table, (name, recipe))
            for option in ("frequency_threshold", "max_ids", "hash_buckets"):
                if getattr(known, option) != getattr(recipe, option):
                    raise DatasetError(
                        f"{where}feature {name}: {option} is {getattr(recipe, option)}, but {getattr(known, option)} for feature {other}, which "
                        f"shares the table {recipe.table}; expected the same value"
                    )
    return plan


def check_weighted_mean(name: str, recipe: Recipe, where: str = "") -> None:
    """Raise DatasetError where weights of ids have no effect: the weighted mean of a list of one id is that id's vector."""
    if recipe.weights is not None and recipe.pooling == MEAN and recipe.max_hotness == 1:
        raise DatasetError(
            f"{where}feature {name}: with pooling mean and lists of one value (max_hotness 1), weights in column {recipe.weights} have no effect; "
            "expected pooling sum, or max_hotness of at least 2"
        )


def _check_training_only(plan: Plan, where: str) -> None:
    """Raise DatasetError where scores read the column of a feature for training only, by another feature."""
    hidden = {recipe.columns[0]: name for name, recipe in plan.features.items() if recipe.training_only is not None}
    for name, recipe in plan.features.items():
        column = next((column for column in recipe.inputs if column in hidden), None) if recipe.training_only is None else None
        if column is not None:
            mend = "remove one of them" if recipe.kind in (CROSS, LIST) else "give both training_only, or remove one of them"
            raise DatasetError(
                f"{where}feature {name}: reads column {column}, as feature {hidden[column]} does, which is for training only; scores would still "
                f"depend on the column: {mend}"
            )


def tables_of(plan: Plan) -> dict[str, list[str]]:
    """Return the features of each embedding table that has a vocabulary."""
    found: dict[str, list[str]] = {}
    for name, recipe in plan.features.items():
        if recipe.has_vocabulary:
            found.setdefault(recipe.table or name, []).append(name)
    return found
