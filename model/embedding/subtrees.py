"""The subtrees of a row's tree of sums that a shard covers, and those that workers exchange; see `row_squares`. Imports no TensorFlow."""

from model.embedding.placement import Placement

Node = tuple[int, int]  # first column and number of columns of a subtree


def subtrees(first: int, last: int, dim: int) -> list[Node]:
    """Return the largest subtrees of a tree over `dim` columns that together cover columns first to last."""
    # The last shard covers the zeros that pad the tree to a power of two, as well.
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
    """Return the subtrees, with their tables, whose sums one worker sends to another, in the order of sending."""
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
    """Return the number of columns of the whole tree: the next power of two."""
    return 1 << (dim - 1).bit_length()
