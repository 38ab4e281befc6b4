"""Datasets in the forms of the older systems, small, for the commands of docs/moving.md."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from dataloading.feature_spec import FeatureSpec, generator_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from tests.dataloading.criteo_rows.test_facebook import write_archive, write_terabyte
from tests.dataloading.criteo_rows.test_nvidia_binary import write as write_binary
from tests.dataloading.parquet.outbrain_files import MULTI_HOT, ONE_HOT, write_files

ROWS = {"train": 2048, "test": 1024}
TABLES = (100, 50, 7)


def write_raw(folder: Path) -> Path:
    """Write a tf_raw dataset of three tables and 13 numericals."""
    spec = generator_spec(TABLES, 13, 1.2)
    with TfRawWriter(folder, spec, tuple(ROWS)) as writer:
        for split, count in ROWS.items():
            writer.append(split, *SyntheticSplit(spec, split, count, seed=1).read_rows(0, count)[:3])
        writer.publish({})
    return folder


def write_split(folder: Path) -> Path:
    """Write the dataset in the form `split` of NVIDIA's DLRM for PyTorch."""
    spec = FeatureSpec.from_yaml(write_raw(folder) / "feature_spec.yaml")
    (folder / "model_size.json").write_text(json.dumps({f"_c{14 + i}": rows - 1 for i, rows in enumerate(spec.cardinalities)}))
    (folder / "feature_spec.yaml").unlink()
    return folder


def write_records(folder: Path) -> Path:
    """Write the dataset as split_tfrecords, 512 rows a record."""
    from dataloading import transcribe

    raw = write_raw(folder.with_name("raw-of-records"))
    flags = ["--src_dataset_path", str(raw), "--dst_dataset_path", str(folder), "--dst_dataset_type", "split_tfrecords", "--dst_prebatch_size", "512"]
    assert transcribe.main(flags) == 0
    shutil.rmtree(raw)
    return folder


def write_spec(folder: Path) -> Path:
    """Write a small generator specification."""
    folder.mkdir()
    (folder / "feature_spec.yaml").write_text(generator_spec(TABLES, 13, 1.2).to_yaml())
    return folder


def write_csv(folder: Path, with_rows: bool = True) -> Path:
    """Write a specification in NVIDIA's form for CSV files without headers, and the files."""
    folder.mkdir()
    names = ["label", "num_0", "num_1", "cat_0", "cat_1"]
    spec = {
        "feature_spec": {
            "label": {"dtype": "bool"},
            **{name: {"dtype": "float16"} for name in names[1:3]},
            **{name: {"cardinality": "auto" if with_rows else 9, "dtype": "int32"} for name in names[3:]},
        },
        "channel_spec": {"categorical": names[3:], "numerical": names[1:3], "label": ["label"]},
        "source_spec": {split: [{"type": "csv", "features": names, "files": [f"{split}.csv"]}] for split in ROWS},
        "metadata": {},
    }
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    for split in ROWS if with_rows else ():
        draw = np.random.default_rng(len(split))
        lines = (f"{draw.integers(2)},{draw.random():.3f},{draw.random():.3f},{draw.integers(9)},{draw.integers(5)}\n" for _ in range(200))
        (folder / f"{split}.csv").write_text("".join(lines))
    return folder


def write_csv_spec(folder: Path) -> Path:
    return write_csv(folder, with_rows=False)


def write_tfrecords(folder: Path) -> Path:
    """Write records of NVIDIA's Wide & Deep, first release, with displays of four rows, and a specification beside them that makes tables small."""
    from dataloading import transcribe

    spec = generator_spec(TABLES, 3, 1.2)
    spec = replace(spec, group="display_id", dtypes={**spec.dtypes, "display_id": "int64"})
    raw = folder.with_name("raw-of-tfrecords")
    with TfRawWriter(raw, spec, tuple(ROWS)) as writer:
        for split, count in ROWS.items():
            writer.append(split, *SyntheticSplit(replace(spec, group=None), split, count, seed=1).read_rows(0, count)[:3], np.arange(count) // 4)
        writer.publish({})
    flags = ["--src_dataset_path", str(raw), "--dst_dataset_path", str(folder), "--dst_dataset_type", "tfrecord", "--num_files", "2"]
    assert transcribe.main(flags) == 0
    shutil.rmtree(raw)
    return folder


def write_parquet(folder: Path) -> Path:
    """Write Parquet files of NVIDIA's Wide & Deep, current release."""
    write_files(folder)
    return folder


def write_sizes(path: Path) -> Path:
    """Write the widths of their tables."""
    path.write_text(json.dumps(dict.fromkeys([*ONE_HOT, *MULTI_HOT], 4)))
    return path


def write_nvidias_binary(folder: Path) -> Path:
    write_binary(folder)
    return folder


def write_facebook(folder: Path) -> Path:
    folder.mkdir()
    write_terabyte(folder)
    return folder


def write_kaggle(folder: Path) -> Path:
    folder.mkdir()
    write_archive(folder, 70)
    return folder
