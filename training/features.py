"""The features of a model: those that a checkpoint names in its manifest, and those of the current dataset."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.embedding.table import SUM, Feature, Table
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint

FLOAT16 = "float16"
_GROWS = "; --allow_growth continues training from its weights"
_PARTICULARS = {"table": str, "hotness": int, "pooling": str, "weights": bool}


@dataclass(frozen=True)
class ModelFeatures:
    """The features of a model, in the model's order.

    Attributes:
        categorical: V of each categorical feature's table, by the feature's name.
        numerical: names of the numerical features.
        numerical_dtype: the dtype of the numerical features in the dataset.
        particulars: non-default properties by feature: `table` if its name differs from the feature's, `hotness` above 1, `pooling` other than sum,
            `weights` if its ids have weights.
        served: for each feature for training only, the id or number that scores take in its place.
    """

    categorical: Mapping[str, int]
    numerical: tuple[str, ...]
    particulars: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    numerical_dtype: str = FLOAT16
    served: Mapping[str, int | float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tables: Iterable[Table],
        features: Sequence[Feature],
        numerical: Sequence[str],
        dtype: str = FLOAT16,
        served: Mapping[str, int | float] | None = None,
    ) -> "ModelFeatures":
        """Return the features of a dataset; of a model's features, only those named like their columns count. `served` as the attribute."""
        features = [one for one in features if one.name == one.source]
        rows = {table.name: table.rows for table in tables}
        particulars = {}
        for one in features:
            facts = {"table": (one.table, one.name), "hotness": (one.hotness, 1), "pooling": (one.pooling, SUM), "weights": (one.weights, False)}
            if found := {name: value for name, (value, usual) in facts.items() if value != usual}:
                particulars[one.name] = found
        return cls({feature.name: rows[feature.table] for feature in features}, tuple(numerical), particulars, dtype, served or {})

    def to_dict(self) -> dict[str, Any]:
        """Return the features as plain values for the manifest."""
        plain = {"numerical": list(self.numerical), "categorical": dict(self.categorical)}
        if self.particulars:
            plain["particulars"] = {name: dict(facts) for name, facts in self.particulars.items()}
        if self.served:
            plain["served"] = dict(self.served)
        return plain | ({"numerical_dtype": self.numerical_dtype} if self.numerical_dtype != FLOAT16 else {})

    def table(self, feature: str) -> str:
        """Return the name of a categorical feature's table."""
        return self.particulars.get(feature, {}).get("table", feature)

    def pooling(self, feature: str) -> str:
        """Return the pooling of a categorical feature's vectors."""
        return self.particulars.get(feature, {}).get("pooling", SUM)

    def hotness(self, feature: str) -> int:
        """Return the number of ids a sample of a categorical feature."""
        return self.particulars.get(feature, {}).get("hotness", 1)

    def weights(self, feature: str) -> bool:
        """Return whether the ids of a categorical feature have weights."""
        return self.particulars.get(feature, {}).get("weights", False)

    def is_list(self, feature: str) -> bool:
        """Return whether a sample may have any number of a categorical feature's ids up to the hotness, and -1 means no id."""
        return self.hotness(feature) > 1 or self.weights(feature)

    def columns(self, feature: str) -> int:
        """Return the numbers of a sample in an array of ids: the hotness, and as many again for weights."""
        return self.hotness(feature) * (2 if self.weights(feature) else 1)

    @property
    def tables(self) -> dict[str, int]:
        """V of each table, by the table's name."""
        return {self.table(feature): rows for feature, rows in self.categorical.items()}


def saved_features(checkpoint: Checkpoint) -> ModelFeatures:
    """Return the features of a checkpoint's model. Raises CheckpointError where the manifest does not name them correctly."""
    saved = checkpoint.manifest.get("features")
    saved = saved if isinstance(saved, Mapping) else {}
    rows, known, particulars, dtype = (saved.get(name) for name in ("categorical", "numerical", "particulars", "numerical_dtype"))
    particulars, dtype = ({} if particulars is None else particulars), dtype or FLOAT16
    sound = isinstance(rows, Mapping) and isinstance(known, list) and all(isinstance(name, str) for name in (*known, *rows))
    sound = sound and all(type(count) is int and count > 0 for count in rows.values()) and len(set(known)) == len(known)
    served = saved.get("served") or {}
    if not sound or not _sound_particulars(particulars, rows) or dtype not in (FLOAT16, "float32") or not _sound_served(served, rows, known):
        raise CheckpointError(f"{checkpoint.folder}/manifest.json: does not name the model's features; the checkpoint is damaged")
    return ModelFeatures(rows, tuple(known), particulars, dtype, served)


def saved_widths(checkpoint: Checkpoint) -> dict[str, int]:
    """Return D of each table of a checkpoint's model, by the table's name. Raises CheckpointError where a table's array is missing."""
    return {name: checkpoint.shape(f"tables/{name}/weights")[-1] for name in saved_features(checkpoint).tables}


def _sound_particulars(particulars: Any, rows: Mapping[str, int]) -> bool:
    if not isinstance(particulars, Mapping) or set(particulars) - set(rows):
        return False
    known = all(
        isinstance(facts, Mapping) and all(type(value) is _PARTICULARS.get(name) for name, value in facts.items()) for facts in particulars.values()
    )
    return known and all(facts.get("hotness", 1) >= 1 and facts.get("pooling", SUM) in (SUM, "mean") for facts in particulars.values())


def _sound_served(served: Any, rows: Mapping[str, int], numerical: Sequence[str]) -> bool:
    if not isinstance(served, Mapping):
        return False
    return all(
        (name in rows and type(value) is int and 0 <= value < rows[name]) or (name in numerical and type(value) is float)
        for name, value in served.items()
    )


def check_names(checkpoint: Checkpoint, names: Sequence[str]) -> None:
    """Compare the checkpoint's categorical features with the dataset's by name and order. Raises CheckpointError where they differ."""
    saved = saved_features(checkpoint).categorical
    for name in names:
        if name not in saved:
            raise CheckpointError(f"{checkpoint.folder}: has no table for feature {name}; it was trained on {_listed(saved)}{_GROWS}")
    for name in saved:
        if name not in names:
            raise CheckpointError(f"{checkpoint.folder}: has a table for feature {name}, which the dataset lacks")
    if list(saved) != list(names):
        raise CheckpointError(
            f"{checkpoint.folder}: was trained on the categorical features in the order {_listed(saved)}, the dataset has {_listed(names)}; "
            "the interaction depends on the order: reorder channel_spec.categorical like the checkpoint"
        )


def check_features(checkpoint: Checkpoint, now: ModelFeatures, new_run: bool = False) -> None:
    """Compare the checkpoint's features with the dataset's, before anything is allocated. The hotness of a feature may differ.

    In a `new_run`, which takes the weights only, scores may take other values of features for training only.

    Raises:
        CheckpointError: a feature is missing or new, a table has another number of rows, or a feature has another table or pooling, or other ids.
    """
    before = saved_features(checkpoint)
    check_names(checkpoint, list(now.categorical))
    for name, rows in before.categorical.items():
        if rows != (needed := now.categorical[name]):
            raise CheckpointError(f"{checkpoint.folder}: the table of feature {name} has {rows} rows, the dataset needs {needed}{_GROWS}")
    check_lookups(checkpoint, before, now)
    if not new_run:
        check_served(checkpoint, before, now, [*now.categorical, *now.numerical])
    if now.numerical != before.numerical:
        raise CheckpointError(
            f"{checkpoint.folder}: was trained on {len(before.numerical)} numerical features ({_listed(before.numerical)}), "
            f"the dataset has {len(now.numerical)} ({_listed(now.numerical)})"
        )


def check_served(checkpoint: Checkpoint, before: ModelFeatures, now: ModelFeatures, names: Iterable[str]) -> None:
    """Raise CheckpointError where scores take other values of these features than the dataset says."""
    for name in names:
        saved, stated = (some.served.get(name, "the logged value") for some in (before, now))
        if saved != stated:
            raise CheckpointError(
                f"{checkpoint.folder}: scores take {saved} for feature {name}, the dataset says {stated}; correct training_only in "
                "feature_spec.yaml, or start a new run from its weights with --resume weights"
            )


def check_lookups(checkpoint: Checkpoint, before: ModelFeatures, now: ModelFeatures) -> None:
    """Raise CheckpointError where a feature that both have is looked up in another table than before, or pooled in another way."""
    for name in before.categorical:
        if name not in now.categorical:
            continue
        if before.table(name) != now.table(name):
            raise CheckpointError(
                f"{checkpoint.folder}: feature {name} was looked up in table {before.table(name)}, the dataset says {now.table(name)}"
            )
        if before.pooling(name) != now.pooling(name):
            raise CheckpointError(
                f"{checkpoint.folder}: the vectors of feature {name} were pooled by {before.pooling(name)}, the dataset says {now.pooling(name)}"
            )
        if before.weights(name) != now.weights(name):
            had, has = ("weights", "none") if before.weights(name) else ("no weights", "weights")
            raise CheckpointError(f"{checkpoint.folder}: the ids of feature {name} had {had} in training, those of the dataset have {has}")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "") if names else "none"
