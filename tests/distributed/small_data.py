"""The data of these tests, and the flags of a model that is small enough for it."""

from pathlib import Path

from dataloading.feature_spec import generator_spec
from dataloading.synthetic import SyntheticSplit
from dataloading.tf_raw import TfRawWriter

# The first features of criteo_t15_synthetic; tables of more than 200 rows are cut to that.
CARDINALITIES = tuple(min(rows, 200) for rows in (7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114))
NUM_NUMERICAL, SEED = 3, 1
DIM, BATCH = 8, 48
ROWS = {"whole": 5 * BATCH, "partial": 5 * BATCH - 17, "large": 5000, "test": 397}  # 397 is prime: no batch and no N divides it
DIMS = ("--embedding_dim", str(DIM), "--bottom_mlp_dims", f"16,{DIM}", "--top_mlp_dims", "16,1")
FLAGS = (
    "--cpu",
    *DIMS,
    "--batch_size",
    str(BATCH),
    "--gradient_slices",
    "8",
    "--valid_batch_size",
    "96",
    "--optimizer",
    "adam",
    "--learning_rate",
    "0.01",
    "--warmup_steps",
    "0",
)


def write_dataset(folder: Path, rows: dict[str, int]) -> Path:
    """A tf_raw dataset with these splits, drawn like `--dataset_type synthetic`."""
    spec = generator_spec(CARDINALITIES, NUM_NUMERICAL, 1.2)
    with TfRawWriter(folder, spec, tuple(rows)) as writer:
        for split, count in rows.items():
            numerical, ids, labels, _ = SyntheticSplit(spec, split, count, seed=SEED).read_rows(0, count)
            writer.append(split, numerical, ids, labels)
        writer.publish({})
    return folder
