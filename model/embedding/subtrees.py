"""Which subtrees of a row's tree of sums a shard has, and which of them workers send each other; see `row_squares`. Imports no TensorFlow."""

from model.embedding.placement import Placement

Node = tuple[int, int]  # first column and number of columns of a subtree


def subtrees(first: int, last: int, dim: int) -> list[Node]:
    """The largest subtrees of a tree over `dim` columns that make up columns first to last."""
    size = padded_width(dim)
    stop = size if last == dim else last
    found, start = [], first
    while start < stop:
        width = start & -start or size
        while start + width > stop:
            width //= 2
        found.append((start, width))
        start += width
    return found


def sent(placement: Placement, sender: int, receiver: int) -> list[tuple[int, Node]]:
    """The subtrees, with their tables, of which one worker sends the sums to another, in order."""
    if sender == receiver:
        return []
    wanted = {shard.table for shard in placement.workers[receiver]}
    return [
        (shard.table, node)
        for shard in placement.workers[sender]
        if shard.table in wanted and placement.is_cut(shard)
        for node in subtrees(shard.first, shard.last, placement.tables[shard.table].dim)
    ]


def padded_width(dim: int) -> int:
    """Columns of the whole tree: the next power of two."""
    return 1 << (dim - 1).bit_length()
