"""Initial values of a table's rows: they depend only on (seed, table, row); the generators are those of `utils.initial_rows`."""

from model.embedding.table import Table
from utils.initial_rows import Draw, Origin, Rows, numbers_of_rows


def origin_of(table: Table, seed: int) -> Origin:
    """Return the origin of all rows of a new table."""
    return Origin(0, table.rows, table.name, table.rows, table.dim, seed, table.initializer, table.scale)


def rows_of(table: Table, seed: int, columns: tuple[int, int], draw: Draw = numbers_of_rows) -> Rows:
    """Return the filler of columns first to last of a table: uniform in ±1/sqrt(V), ±scale or, like Keras's Embedding, ±0.05; normal; zeros."""
    return origin_of(table, seed).generator(columns, draw)
