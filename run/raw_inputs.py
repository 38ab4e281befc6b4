"""Encoding of raw values into a trained model's inputs, with the vocabularies and transforms in its checkpoint."""

import threading
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from dataloading.vocabulary import RECORD, kept_file, read_vocabulary
from training.features import ModelFeatures
from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.reading import Checkpoint
from utils.encoding import transforms
from utils.encoding.numerical import TRANSFORMS
from utils.errors import UserError


class UnknownValues:
    """Counters, by feature, of the values looked up in its vocabulary and of the unknown values among them. Thread-safe."""

    def __init__(self):
        self._counts: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def add(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Add the counts of some samples: values and unknown values."""
        with self._lock:
            for name, pair in counts.items():
                before = self._counts.get(name, (0, 0))
                self._counts[name] = before[0] + pair[0], before[1] + pair[1]

    def taken(self) -> dict[str, tuple[int, int]]:
        """Return the counts since the last call, and reset them."""
        with self._lock:
            found, self._counts = self._counts, {}
        return found


def counted(values: Any, ids: np.ndarray) -> tuple[int, int]:
    """Return the number of present values and of unknown ones, for values (null where missing) and their ids, which are 0 for both."""
    missing = values.null_count()
    return len(values) - missing, len(ids) - np.count_nonzero(ids) - missing


class CriteoInputs:
    """An encoder of columns of a Criteo log into `[B, M]` and `[F, B]`. It needs 8 bytes of memory for each value of the vocabularies.

    Args:
        checkpoint: checkpoint of the model.
        numerical: names of its numerical features.
        categorical: table rows of its categorical features.
        served: the value that scores take for each feature for training only.

    Attributes:
        columns: columns of the log that are read: the features themselves, without those for training only.
        optional: columns of the features for training only: samples may have them, valid or not, but their values are not read.
        served: as given.
        numbers: the columns that hold numbers; the others hold texts.
        kinds: kind of each column, `number` or `hexadecimal`.
        unknown: counts of values that the vocabularies lack.
        transforms: transform of each feature, by its name.
        vocabularies: vocabulary file of each feature that has one and is looked up.

    Raises:
        UserError: the checkpoint does not record the transforms of raw values, or its vocabularies are damaged.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        numerical: Sequence[str],
        categorical: Mapping[str, int],
        served: Mapping[str, int | float] = MappingProxyType({}),
    ):
        from utils.encoding.conversions import Conversions
        from utils.encoding.raw import hexadecimal, whole_number

        known = checkpoint.manifest.get(transforms.NAME, {})
        self.served, self.optional = served, frozenset(served)
        self.columns = tuple(name for name in (*numerical, *categorical) if name not in served)
        self.numbers = frozenset(numerical) - self.optional
        self.kinds = {name: "number" if name in self.numbers else transforms.HEXADECIMAL for name in self.columns}
        self.unknown = UnknownValues()
        self._transforms = {name: _transform(checkpoint, known, name, TRANSFORMS) for name in numerical}
        self._categorical = tuple(categorical)
        self.transforms = self._transforms | {name: _transform(checkpoint, known, name, (transforms.HEXADECIMAL,)) for name in categorical}
        self._lookups = {name: _lookup(checkpoint, name, rows) for name, rows in categorical.items() if name not in served}
        self.vocabularies = {name: checkpoint.folder / kept_file(name) for name in self._lookups}
        self._conversions = Conversions(
            {name: (name,) for name in self.columns},
            lambda name, types: (whole_number if name in self.numbers else hexadecimal)(name, types[name]),
        )

    def encoded(self, columns: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Encode one value of every feature a sample: numericals `[B, M]` float16, ids `[F, B]` int32. Raises ValueError that names the feature.

        `columns` may have those that are `optional`.
        """
        import polars as pl

        from utils.encoding.raw import series_of, transformed

        given = {name: series_of(name, columns[name]) for name in self.columns}
        count = _num_samples("feature", given, _unread(columns, self.optional))
        found = self._conversions.values(pl.DataFrame(list(given.values())))
        numerical, places = np.empty((count, len(self._transforms)), np.float16), {name: place for place, name in enumerate(self._transforms)}
        for transform in set(self._transforms.values()):
            if names := [name for name, used in self._transforms.items() if used == transform and name in found]:
                numerical[:, [places[name] for name in names]] = transformed(pl.DataFrame([found[name] for name in names]), transform)
        for name in places.keys() & self.served.keys():
            numerical[:, places[name]] = self.served[name]
        ids = {name: lookup.ids(found[name]) for name, lookup in self._lookups.items()}
        self.unknown.add({name: counted(found[name], one) for name, one in ids.items()})
        return numerical, np.stack([ids[name] if name in ids else np.full(count, self.served[name], np.int32) for name in self._categorical])


class TableInputs:
    """An encoder of columns of a table into `[B, M]`, and ids of each categorical feature, as `preproc.table` encodes.

    Ids are `[B]`, of a list `[B, h]`, and with weights `[B, 2h]`, as `dataloading.id_weights` describes.

    Args:
        checkpoint: checkpoint of the model.
        features: features of the model.

    Attributes:
        columns: columns of the table that the features are made of, without those of `optional`.
        optional: columns that only features for training only are made of: samples may have them, valid or not, but their values are not read.
        served: the value that scores take for each feature for training only.
        numbers: the columns that only numbers are made of; the others may be texts.
        kinds: kind of each column: `number`, `time`, `list`, `weights` (of the values in a list), or the kind of its ids' values in training
            (`integer`, `text`, … of `recipe.VALUES`; `text` where that was not recorded).
        unknown: counts of values that the vocabularies lack.
        transforms: recipe of each feature, by its name.
        vocabularies: vocabulary file of each feature that has one and is looked up.

    Raises:
        UserError: as in `CriteoInputs`.
    """

    def __init__(self, checkpoint: Checkpoint, features: ModelFeatures):
        from utils.encoding.columns import made
        from utils.encoding.conversions import Conversions
        from utils.encoding.recipe import LIST, NUMERICAL

        self._features, self._recipes = features, _recipes(checkpoint, features)
        self.served = features.served
        self._read = {name: recipe for name, recipe in self._recipes.items() if name not in self.served}
        self.columns = tuple(dict.fromkeys(column for recipe in self._read.values() for column in recipe.inputs))
        self.optional = frozenset(column for recipe in self._recipes.values() for column in recipe.inputs) - frozenset(self.columns)
        as_texts = {column for recipe in self._read.values() if recipe.kind != NUMERICAL for column in recipe.inputs}
        self.numbers = frozenset(self.columns) - as_texts
        self.kinds = dict.fromkeys(self.columns, "number") | self._kinds_of_texts()
        self.unknown = UnknownValues()
        self._conversions = Conversions(
            {name: recipe.inputs for name, recipe in self._read.items()}, lambda name, types: made(self._read[name], types)
        )
        self._lists = {name for recipe in self._read.values() if recipe.kind == LIST for name in recipe.inputs}
        rows = features.categorical
        self._lookups = {name: _lookup(checkpoint, name, rows[name]) for name in rows if name in self._read and self._recipes[name].has_vocabulary}
        self.transforms, self.vocabularies = self._recipes, {name: checkpoint.folder / kept_file(name) for name in self._lookups}

    def _kinds_of_texts(self) -> dict[str, str]:
        """Return the kinds of the columns that ids and times are made of."""
        from utils.encoding.recipe import CATEGORICAL, LIST, TEXT, TIME

        found = {recipe.weights: "weights" for recipe in self._read.values() if recipe.weights is not None}
        for recipe in sorted((part for one in self._read.values() for part in one.parts or (one,)), key=lambda one: one.kind == CATEGORICAL):
            if recipe.kind in (CATEGORICAL, LIST, TIME):
                found[recipe.columns[0]] = recipe.kind if recipe.kind in (LIST, TIME) else recipe.values or TEXT
        return found

    def encoded(self, columns: Mapping[str, Any]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Encode columns: numericals `[B, M]` in the dataset's dtype, ids of each categorical feature. Raises ValueError that names the feature.

        `columns` may have those that are `optional`.
        """
        import polars as pl

        from utils.encoding.raw import lists_of, series_of

        given, unread = {}, _unread(columns, self.optional)
        for name, values in columns.items():
            if name in unread:
                continue
            given[name] = lists_of(name, values, self.kinds[name] == "weights") if name in self._lists else series_of(name, values)
        for name in self.numbers:
            if given[name].dtype == pl.Boolean:
                raise ValueError(f"column {name}: holds booleans, expected numbers: 1 for true and 0 for false, where preprocessing read them so")
        count = _num_samples("column", given, unread)
        raw = pl.DataFrame(list(given.values()))
        weights = {name: self._weights(name, raw) for name, recipe in self._recipes.items() if recipe.weights is not None}
        found = self._conversions.values(raw)
        numerical, counts = self._numerical(found, count), {}
        ids = [
            np.full(count, self.served[name], np.int32) if name in self.served else self._ids(name, found[name], weights.get(name), counts)
            for name in self._features.categorical
        ]
        self.unknown.add(counts)
        return numerical, ids

    def _weights(self, name: str, raw: Any) -> Any:
        """Return the weights of a feature's values, lists of Float64."""
        from utils.encoding.id_weights import fault, id_weights

        recipe, pooling = self._recipes[name], self._features.pooling(name)
        found, bad = id_weights(recipe, raw, pooling)
        if bad.any():
            row = bad.arg_max()
            raise ValueError(f"feature {name}: sample {row}: {fault(recipe, raw[row : row + 1], pooling)}")
        return found

    def _numerical(self, found: Mapping[str, Any], count: int) -> np.ndarray:
        from utils.encoding.numbers import stored, transformed

        dtype = self._features.numerical_dtype
        numbers = np.empty((count, len(self._features.numerical)), dtype)
        for place, name in enumerate(self._features.numerical):
            if name in self.served:
                numbers[:, place] = self.served[name]
                continue
            values = found[name].to_numpy()
            numbers[:, place], beyond = stored(transformed(self._recipes[name], values), dtype)
            if beyond is not None:
                raise ValueError(f"feature {name}: value {values[beyond]} of sample {beyond} is beyond what {dtype} holds")
        return numbers

    def _ids(self, name: str, values: Any, weights: Any, counts: dict[str, tuple[int, int]]) -> np.ndarray:
        from utils.encoding.ids import hashed_ids, padded
        from utils.encoding.numbers import bucketed
        from utils.encoding.recipe import LISTS
        from utils.encoding.values import ValueKindError, texts_of

        recipe = self._recipes[name]
        if recipe.buckets is not None:
            return bucketed(recipe, values.to_numpy())
        lengths = None
        if recipe.gives == LISTS:
            lists = values.list.head(recipe.max_hotness)
            lengths = lists.list.len().to_numpy().astype(np.int64)
            values = lists.filter(lists.list.len() > 0).explode()
        try:
            values = texts_of(recipe, given := values)
        except ValueKindError as error:
            same = given == error.text
            place = (same if same.any() else given.str.contains(error.text, literal=True)).arg_max()
            sample = place if lengths is None else int(np.searchsorted(np.cumsum(lengths), place, side="right"))
            raise ValueError(f"feature {name}, column {', '.join(recipe.value_columns)}: sample {sample}: {error}") from None
        ids = hashed_ids(values, recipe.hash_buckets) if recipe.hash_buckets else self._lookups[name].ids(values)
        if recipe.has_vocabulary:
            counts[name] = counted(values, ids)
        if weights is not None:
            from run.weighted_ids import with_weights
            from utils.encoding.id_weights import padded_weights

            lists = padded(ids, lengths, recipe.max_hotness, weighted=True)
            return with_weights(name, self._features.pooling(name), lists, padded_weights(weights, recipe.max_hotness))
        return ids if lengths is None else padded(ids, lengths, recipe.max_hotness)


def raw_inputs(checkpoint: Checkpoint, features: ModelFeatures) -> CriteoInputs | TableInputs:
    """Return the encoder of a model's raw values, which repeats its dataset's preprocessing. Raises UserError as the encoders do."""
    known = checkpoint.manifest.get(transforms.NAME, {})
    if isinstance(known, Mapping) and known and all(isinstance(entry, Mapping) for entry in known.values()):
        return TableInputs(checkpoint, features)
    return CriteoInputs(checkpoint, features.numerical, features.categorical, features.served)


def _unread(columns: Mapping[str, Any], optional: Collection[str]) -> dict[str, Any]:
    """Return the given columns whose values are not read."""
    return {name: values for name, values in columns.items() if name in optional}


def _num_samples(what: str, given: Mapping[str, Any], unread: Mapping[str, Any]) -> int:
    """Return the number of samples. Raises ValueError where no column says it, or two columns differ."""
    first, count = None, 0
    for name, column in (given | unread).items():
        found = len(column) if hasattr(column, "__len__") and not isinstance(column, str | bytes) and getattr(column, "ndim", 1) else None
        if found is None or (found != count and first is not None):
            expected = "[B]" if first is None else f"[{count}] as {first} has"
            raise ValueError(f"{what} {name}: has shape [{'' if found is None else found}], expected {expected}")
        first, count = first or name, found
    if first is None:
        raise ValueError(f"no {what} is given; expected at least one of those that scores take in any case, which says how many samples there are")
    return count


def _recipes(checkpoint: Checkpoint, features: ModelFeatures) -> dict[str, Any]:
    """Return the recipe of each feature of a table. Raises UserError where one is invalid, or disagrees with the model about weights of ids."""
    from utils.encoding.recipe import recipe_of

    known, recipes = checkpoint.manifest[transforms.NAME], {}
    for name in (*features.numerical, *features.categorical):
        try:
            recipes[name] = recipe_of(name, known.get(name), fitted=True)
        except ValueError as error:
            raise UserError(f"{checkpoint.folder}: the transform of feature {name}: {error}") from None
        if (recipes[name].weights is not None) != features.weights(name):
            found = "names no column of weights, but the model has them" if features.weights(name) else "names weights, but the model has none"
            raise UserError(f"{checkpoint.folder}: the transform of feature {name} {found}; train on a dataset as preproc.table wrote it")
    return recipes


def _transform(checkpoint: Checkpoint, known: Any, name: str, expected: Sequence[str]) -> str:
    found = known.get(name) if isinstance(known, Mapping) else None
    if found is None:
        raise UserError(
            f"{checkpoint.folder}: does not record how raw values became feature {name}: its dataset has no metadata.transforms (preproc.table and "
            "preproc.criteo write them), or an older version saved it; give score the values of a dataset instead"
        )
    if found not in expected:
        raise UserError(f"{checkpoint.folder}: the transform of feature {name} is {str(found)[:60]!r}, expected {' or '.join(expected)}")
    return found


def _lookup(checkpoint: Checkpoint, name: str, rows: int):
    import polars as pl

    from utils.encoding.ids import TextLookup
    from utils.encoding.raw import VocabularyLookup

    path, record = checkpoint.folder / kept_file(name), checkpoint.manifest.get(RECORD, {}).get(name)
    if record is None or not path.is_file():
        raise UserError(f"{checkpoint.folder}: keeps no vocabulary of feature {name}: its dataset had none, or an older version saved it")
    found, _ = read_vocabulary(path, 0, rows)
    if (found.values, found.digest) != (record["values"], record["digest"]):
        raise DamagedError(checkpoint.folder, f"{path}: its values differ from those that the model was trained with; the checkpoint is damaged")
    vocabulary = pl.read_parquet(path, columns=["value", "id"], glob=False)
    return TextLookup(vocabulary) if vocabulary.schema["value"] == pl.String else VocabularyLookup(vocabulary)
