"""Similarity of two documents: the cosine of their vectors of categories, topics or entities."""

from collections.abc import Iterable

import numpy as np
import polars as pl

from preproc.outbrain.places import Places


class Aspects:
    """The aspects of documents, of one kind: a sparse vector of length 1 for each document.

    An aspect with confidence c that occurs in k of N documents has the weight ln(ln(N / k)) c, as in NVIDIA's preprocessing, and 0 where N / k <= e:
    there the formula is negative or undefined, and such a common aspect says little about a document.

    Args:
        frames: frames with the columns `document` (index of a document in use), `aspect` and `confidence`.
        counts: for each `aspect` the number of its `rows` in the file.
        num_documents: N.
        num_places: number of documents in use.
    """

    def __init__(self, frames: Iterable[pl.DataFrame], counts: pl.DataFrame, num_documents: int, num_places: int):
        share = pl.max_horizontal(num_documents / pl.col("rows"), 1.0).log()
        found = counts.sort("aspect").with_row_index("code").with_columns(pl.max_horizontal(share, 1.0).log().alias("weight"))
        joined = pl.concat(frames).join(found, on="aspect", how="left", maintain_order="left")
        held = joined.with_columns(pl.col("weight") * pl.col("confidence")).group_by("document", "code").agg(pl.col("weight").sum())
        held = held.filter(pl.col("weight") != 0).sort("document", "code")
        document, self._codes = held["document"].to_numpy(), held["code"].cast(pl.Int64).to_numpy()
        weights = held["weight"].to_numpy()
        length = np.sqrt(np.bincount(document, weights**2, num_places))
        self._weights = weights / length[document]
        self._starts = np.searchsorted(document, np.arange(num_places + 2))  # the last index, a missing document, has no entries
        self.num_aspects = counts.height

    def cosine(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the cosines of n pairs of documents, given by index (-1: none): `[n]` float64 in [0, 1]; 0 where one of them has no vector."""
        pairs, keys, weights = self._entries(first)
        _, others, other_weights = self._entries(second)
        if not len(keys) or not len(others):
            return np.zeros(len(first))
        # Both arrays are sorted, so successive searches touch neighbouring entries, which are in the processor's cache.
        found = np.minimum(np.searchsorted(others, keys), len(others) - 1)
        same = others[found] == keys
        return np.clip(np.bincount(pairs[same], weights[same] * other_weights[found[same]], len(first)), 0.0, 1.0)

    def _entries(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the pair, a key of pair and aspect, and the weight of every entry of the documents' vectors."""
        documents = np.where(documents < 0, len(self._starts) - 2, documents)
        starts = self._starts[documents]
        counts = self._starts[documents + 1] - starts
        pairs = np.repeat(np.arange(len(documents)), counts)
        places = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(len(pairs))
        return pairs, pairs * max(self.num_aspects, 1) + self._codes[places], self._weights[places]


def counted(documents: Places, rows: pl.DataFrame, column: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of documents in use, for `Aspects`, and the number of rows of each aspect, from some rows of a file."""
    rows = rows.rename({column: "aspect", "confidence_level": "confidence"})
    places = pl.Series("document", documents.of(rows["document_id"].to_numpy()))
    kept = rows.select(places, "aspect", "confidence").filter(pl.col("document") >= 0)
    return kept, rows.group_by("aspect").agg(pl.len().alias("rows"))


def summed(counts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Add up the numbers of rows of each aspect."""
    return pl.concat(counts).group_by("aspect").agg(pl.col("rows").sum())
