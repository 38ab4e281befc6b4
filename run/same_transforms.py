"""Comparison of the transforms of a checkpoint's features with a dataset's. Where they differ, the model gets other inputs than in training."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dataloading.feature_spec import FeatureSpec
from utils.checkpoint.reading import Checkpoint
from utils.encoding import transforms
from utils.encoding.comparing import difference
from utils.errors import UserError


def check_transforms(checkpoint: Checkpoint, spec: FeatureSpec, allowed: bool, warn: Callable[[str], None]) -> None:
    """Compare how raw values became the features that the checkpoint and the dataset share.

    Args:
        checkpoint: checkpoint to restore.
        spec: feature specification of the dataset.
        allowed: `--allow_other_transforms`: a difference is a warning instead of an error.
        warn: called with a line about an allowed difference, and about features that cannot be compared.

    Raises:
        UserError: a feature is made in another way; the message names it and both values.
    """
    names = [*spec.numerical, *(feature.name for feature in spec.categorical)]
    before = _entries(checkpoint.manifest.get(transforms.NAME))
    now = _entries(transforms.transforms_of(spec.metadata, spec.numerical, [feature.name for feature in spec.categorical]))
    _warn_of_unrecorded(checkpoint, spec, [name for name in names if name in _trained(checkpoint)], before, now, warn)
    found = {name: difference(name, before[name], now[name]) for name in names if name in before and name in now}
    different = {name: one for name, one in found.items() if one is not None}
    if not different:
        return
    name, (option, old, new) = next(iter(different.items()))
    more = f" ({len(different) - 1} more features differ, too)" if len(different) > 1 else ""
    line = f"feature {name}: {option} is {new} in {spec.path}, and {old} in the data that {checkpoint.folder} was trained on{more}"
    if not allowed:
        raise UserError(
            f"{line}, so the model would get other inputs than in training; create the dataset with the training data's transforms (--vocabulary of "
            "preproc.table and preproc.criteo), or give --allow_other_transforms if this is intended"
        )
    warn(f"--allow_other_transforms: {line}")


def _entries(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _trained(checkpoint: Checkpoint) -> set[str]:
    """Return the names of the features of the checkpoint's model."""
    features = _entries(checkpoint.manifest.get("features"))
    return {*features.get("numerical", ()), *features.get("categorical", ())}


def _warn_of_unrecorded(
    checkpoint: Checkpoint, spec: FeatureSpec, names: Iterable[str], before: Mapping, now: Mapping, warn: Callable[[str], None]
) -> None:
    """Warn of features whose transform is recorded on one side only."""
    for known, other, who in ((before, now, f"{spec.path}"), (now, before, f"{checkpoint.folder}")):
        if lost := [name for name in names if name in known and name not in other]:
            listed = f"feature{'s' if len(lost) > 1 else ''} {', '.join(lost[:4])}{', …' if len(lost) > 4 else ''}"
            warn(f"{listed}: {who} does not record how raw values became its inputs, so they cannot be compared with those of training")
