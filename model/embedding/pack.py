"""Lookups of equal hotness and pooling in shards that share variables: one gather for each position in the lists of ids."""

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from model.embedding.shard import LocalLookup, not_zero, shifted


class Pack:
    """Lookups whose vectors lie side by side, `[B, n·width]`.

    Args:
        lookups: n lookups of the same width, hotness and pooling, all with weights or all without.
    """

    def __init__(self, lookups: Sequence[LocalLookup]):
        self.lookups, self.width = tuple(lookups), lookups[0].local.shard.width
        self.hotness, self._mean, self.weighted = lookups[0].ids.hotness, lookups[0].ids.mean, lookups[0].ids.weighted
        self.is_list = lookups[0].ids.is_list

    def __len__(self) -> int:
        return len(self.lookups)

    def rows(self, ids: tf.Tensor, number: int = 0) -> tf.Tensor:
        """Return the number-th ids of the samples, out of `[K, B]`, as rows of the variables, sample by sample: `[B·n]`; −1 for no id."""
        if len(self) == 1:
            return self.lookups[0].rows(ids, number)
        places = [lookup.ids.first + number for lookup in self.lookups]
        chosen = ids if places == list(range(ids.shape[0])) else tf.gather(ids, places)
        first = tf.constant([[lookup.local.first] for lookup in self.lookups], ids.dtype)
        return tf.reshape(tf.transpose(shifted(chosen, first, self.is_list)), [-1])

    def weights(self, ids: tf.Tensor, number: int) -> tf.Tensor:
        """Return the weights of the samples' number-th ids, sample by sample: `[B·n, 1]` float32."""
        each = [lookup.ids.weights(ids, number) for lookup in self.lookups]
        return tf.reshape(each[0] if len(self) == 1 else tf.stack(each, axis=1), [-1, 1])

    def pooled(self, ids: tf.Tensor, gather: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Return the pooled vectors, `[K, B] -> [B, n·width]` float32: sums in the order of the lists, or means, weighted where the ids have weights.

        `gather` returns rows of the variables, `[m] -> [m, width]`. It gathers only one id a sample and lookup at a time.
        """
        if not self.is_list:
            total = gather(self.rows(ids))
        else:
            total, counts = None, 0.0
            for number in range(self.hotness):
                rows = self.rows(ids, number)
                there = (rows >= 0)[:, tf.newaxis]
                found, count = gather(tf.maximum(rows, 0)), tf.cast(there, tf.float32)
                if self.weighted:
                    count = self.weights(ids, number)
                    found *= count
                found = tf.where(there, found, 0.0)
                total, counts = found if total is None else total + found, counts + count
            total = total / not_zero(counts) if self._mean else total
        return total if len(self) == 1 else tf.reshape(total, [ids.shape[1], len(self) * self.width])

    def of_rows(self, gradients: tf.Tensor, ids: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Return for each position in the lists the rows, `[B·n]`, and their gradients, `[B·n, width]`, given those of the vectors, `[B·n, width]`.

        A mean's gradients are divided by what the mean divides by; gradients of rows with weights are multiplied by them.
        """
        if self._mean:
            gradients /= tf.reshape(tf.concat([lookup.ids.count(ids) for lookup in self.lookups], axis=1), [-1, 1])
        numbers = range(self.hotness)
        return [(self.rows(ids, number), gradients * self.weights(ids, number) if self.weighted else gradients) for number in numbers]


def packs_of(lookups: Iterable[LocalLookup]) -> list[Pack]:
    """Group lookups in shards that share variables by hotness and pooling."""
    alike: dict[tuple[int, bool, bool], list[LocalLookup]] = {}
    for lookup in lookups:
        alike.setdefault((lookup.ids.hotness, lookup.ids.mean, lookup.ids.weighted), []).append(lookup)
    return [Pack(some) for some in alike.values()]


def joined(packs: Sequence[Pack], vectors: Sequence[tf.Tensor], order: Sequence[LocalLookup]) -> tf.Tensor:
    """Rearrange the packs' vectors, `[B, n·width]` each, into the order of the lookups in `order`, `[B, columns]`."""
    # Consecutive lookups that are neighbours in a pack, too, are cut out together, to make few slices.
    place = {id(lookup): (number, i) for number, pack in enumerate(packs) for i, lookup in enumerate(pack.lookups)}
    pieces: list[list[int]] = []
    for number, i in (place[id(lookup)] for lookup in order):
        if pieces and pieces[-1][0] == number and pieces[-1][2] == i:
            pieces[-1][2] += 1
        else:
            pieces.append([number, i, i + 1])
    found = [_columns(vectors[number], first * packs[number].width, last * packs[number].width) for number, first, last in pieces]
    return found[0] if len(found) == 1 else tf.concat(found, axis=1)


def columns_of(part: tf.Tensor, columns: Sequence[int], width: int) -> tf.Tensor:
    """Select the gradients of some lookups out of `[n, columns]`: `[n, lookups·width]`; `columns` holds each lookup's first column."""
    runs: list[list[int]] = []
    for column in columns:
        if runs and runs[-1][1] == column:
            runs[-1][1] += width
        else:
            runs.append([column, column + width])
    found = [_columns(part, first, last) for first, last in runs]
    return found[0] if len(found) == 1 else tf.concat(found, axis=1)


def _columns(values: tf.Tensor, first: int, last: int) -> tf.Tensor:
    return values if (first, last) == (0, values.shape[1]) else values[:, first:last]
