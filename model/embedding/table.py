"""Descriptions of a model's embedding tables and of the features that are looked up in them. Imports no TensorFlow."""

from dataclasses import dataclass

UNIFORM, NORMAL, ZEROS, GLOROT_NORMAL, KERAS_UNIFORM = INITIALIZERS = ("uniform", "normal", "zeros", "glorot_normal", "keras_uniform")
SUM, MEAN = "sum", "mean"
WIDE = "wide"  # the group of the tables of Wide & Deep's linear part


def wide_name(name: str) -> str:
    """Return the name of the linear part's table or feature that accompanies the one of this name."""
    return f"{name}_{WIDE}"


@dataclass(frozen=True)
class Table:
    """An embedding table `[rows, dim]`.

    `initializer` is "uniform" (in ±1/sqrt(rows), or ±`scale`), "normal" (with `scale` as standard deviation), "zeros", "glorot_normal" or
    "keras_uniform", see `initializers.rows_of`. `optimizer` is the name of its rule, see `training.optimizers.table`. Tables of one `group` share an
    optimizer and a learning-rate schedule. All rows of a `whole` table are updated in every step, and `l2` times each row is added to its gradient.
    A `lazy` table has a row in memory once a batch has named it; `held` is the most rows that memory may come to hold, None for all V. Of a `partial`
    table, which is in memory with all rows, checkpoints store those that may differ from their initial values.
    """

    name: str
    rows: int  # V
    dim: int  # D
    optimizer: str = "sgd"
    initializer: str = UNIFORM
    group: str = ""
    scale: float | None = None
    whole: bool = False
    l2: float = 0.0
    lazy: bool = False
    held: int | None = None
    partial: bool = False

    def __post_init__(self):
        if self.rows < 1 or self.dim < 1:
            raise ValueError(f"table {self.name}: expected at least one row and one column, received {self.rows} x {self.dim}")
        if self.initializer not in INITIALIZERS:
            raise ValueError(f"table {self.name}: initializer {self.initializer!r}, expected one of {', '.join(INITIALIZERS)}")
        if self.initializer == NORMAL and self.scale is None:
            raise ValueError(f"table {self.name}: initializer {NORMAL} needs a scale, its standard deviation")
        if self.partial and (self.lazy or self.whole):
            raise ValueError(f"table {self.name}: expected a partial table that is neither lazy nor whole")
        if self.held is not None and not (self.lazy and 1 <= self.held <= self.rows):
            raise ValueError(f"table {self.name}: {self.held} rows held, expected 1 to {self.rows} of a lazy table, or None")

    @property
    def held_rows(self) -> int:
        """The most rows that memory holds: V, or fewer of a lazy table."""
        return self.rows if self.held is None else self.held


@dataclass(frozen=True)
class Feature:
    """A categorical feature: `source` is the dataset's column, `table` the name of the table that it is looked up in.

    Several features may share a source, whose ids are read once; one of them has the source's name.
    `pooling` of a sample's h vectors is "sum" or "mean"; with `weights`, which the ids bring along (`shard.IdRows`), the weighted sum or mean.
    """

    name: str
    source: str
    table: str
    hotness: int = 1  # h, ids a sample
    pooling: str = SUM
    weights: bool = False

    def __post_init__(self):
        if self.hotness < 1 or self.pooling not in (SUM, MEAN):
            raise ValueError(
                f"feature {self.name}: expected a hotness of at least 1 and pooling {SUM} or {MEAN}, received {self.hotness}, {self.pooling!r}"
            )

    @property
    def is_list(self) -> bool:
        """True where a sample may have any number of ids up to h, and -1 means no id; else each sample has exactly one."""
        return self.hotness > 1 or self.weights

    @property
    def columns(self) -> int:
        """The numbers of a sample in the ids: h, and as many again for weights."""
        return 2 * self.hotness if self.weights else self.hotness


@dataclass(frozen=True)
class Storage:
    """The float32 numbers that an optimizer keeps beside a table: arrays of the table's shape, and slots of one number a row."""

    element_slots: int = 0
    row_slots: int = 0

    def bytes(self, rows: int, width: int) -> int:
        """Return the bytes of `width` columns of a table with its slots."""
        return 4 * rows * (width * (1 + self.element_slots) + self.row_slots)


NO_SLOTS = Storage()
