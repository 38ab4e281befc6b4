"""Small tables, and the datasets that preproc.table makes of them, read back whole."""

from pathlib import Path
from typing import Any

import polars as pl
import yaml

from dataloading.contract import check_quick
from dataloading.tf_raw import TfRawSplit
from preproc.table import command as table
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.folders import write


class Made:
    """A dataset read back: `made["train"]["user"]` has the ids of a feature, `vocabulary` the values behind them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.spec = spec_in(folder)
        self.metadata = self.spec.metadata

    def __getitem__(self, split: str) -> dict[str, list]:
        samples = check_quick(self.spec, (split,))[split]
        rows = TfRawSplit(self.spec, split)
        found = {feature.name: rows.read_ids(i, 0, samples).tolist() for i, feature in enumerate(self.spec.categorical)}
        numbers = rows.read_numerical(0, samples)
        found |= {name: numbers[:, i].tolist() for i, name in enumerate(self.spec.numerical)}
        if self.spec.labelled(split):
            found["label"] = rows.read_labels(0, samples).tolist()
        if self.spec.group is not None:
            found["group"] = rows.read_group(0, samples).tolist()
        if self.spec.weight is not None and self.spec.labelled(split):
            found["weight"] = rows.read_weights(0, samples).tolist()
        rows.close()
        return found

    def vocabulary(self, feature: str) -> list[tuple[str, int, int]]:
        """Return the saved rows (value, id, count)."""
        return pl.read_parquet(self.folder / "vocabulary" / f"{feature}.parquet").rows()

    def values(self, feature: str) -> list[str]:
        """Return the values of the ids 1, 2, …"""
        return [value for value, _, _ in self.vocabulary(feature)]


def make(folder: Path, train: Any, test: Any, *flags: Any, config: dict | None = None, dst: str = "out") -> Made:
    """Write the contents that are no paths to files, run the command in this process, read the dataset."""
    paths = {}
    for split, content in (("train", train), ("test", test)):
        if content is not None:
            paths[split] = content if isinstance(content, Path) else write(folder / f"{dst}-{split}.csv", content)
    arguments = [word for split, path in paths.items() for word in (f"--{split}", path)]
    if config is not None:
        (folder / "columns.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        arguments += ["--config", folder / "columns.yaml"]
    assert do(table, *arguments, "--dst", folder / dst, *flags) == 0
    return Made(folder / dst)
