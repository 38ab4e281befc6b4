"""Generator of synthetic files in the format of Outbrain's click prediction: raw data for Wide & Deep without a Kaggle account.

    python -m dataloading.generate_outbrain --displays 20000 --dst RAW

writes the seven files that `preproc.outbrain` reads. Displays of 2 to 12 ads follow one another over 13 days; in each one ad is clicked, drawn from
a softmax of utilities that depend only on values in the files (`outbrain_world`). The best possible score is written, too:
RAW/planted_signal.parquet has for each display the expected average precision of its ads, ordered by their true probabilities, and
RAW/planted_signal.json the mean over the last two days.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import polars as pl
from tqdm import tqdm

from dataloading.synthetic.outbrain_truth import TRUTH, TRUTH_ROWS
from dataloading.synthetic.outbrain_world import PLATFORMS, OutbrainWorld, Sizes
from dataloading.synthetic.power_law import ids_from_uniforms
from dataloading.synthetic.streams import stream_generator
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.naming import naming
from utils.scratch import Scratch
from utils.signals import EndedBySignals, uninterrupted

NAME = "dataloading.generate_outbrain"
CLICKS, EVENTS, CUTOFF = "clicks_train.csv", "events.csv", 12  # of MAP@12
_DAYS, _LAST_DAYS, _DAY_MS = 13, 2, 86_400_000
_AT_ONCE = 1 << 16  # displays drawn in a block
_COUNTS = np.array([0.12, 0.13, 0.24, 0.12, 0.18, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01])  # shares of displays with 2, 3, … 12 ads
_CANDIDATES = 18  # ads drawn for a display; repeated ones are left out
_UNLABELLED = 20  # labelled displays for each one without clicks; the displays of the competition's test split have none
_NO_EVENT, _NO_PLATFORM, _NO_PLACE = 0.002, 0.01, 0.01
_MAX_DISPLAYS = 100_000_000


class Displays(NamedTuple):
    """A block of n labelled displays, which show m ads in total, and the events of all displays of the block.

    Attributes:
        ids: `[n]`.
        events: one row for each display of the block, labelled or not, except those that the file of events lacks.
        clicks: `[m]` rows: display, ad, clicked.
        days: `[n]`.
        expected: `[n]`, the expected average precision of the true order.
        reached: `[n]`, the average precision that the true order reaches.
    """

    ids: np.ndarray
    events: pl.DataFrame
    clicks: pl.DataFrame
    days: np.ndarray
    expected: np.ndarray
    reached: np.ndarray


def expected_precision(utilities: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best expected average precision of any order of the ads, if the one clicked ad is drawn from a softmax.

    Args:
        utilities: utilities of the ads of all displays, one display after another, `[m]`.
        starts: index of each display's first ad, `[n]`.

    Returns:
        the sum over a display's ads of P(clicked) / rank, `[n]`, with ranks by descending utility, 0 beyond the 12th; and the ranks, from 1, `[m]`.
    """
    display = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(utilities)))
    order = np.lexsort((-utilities, display))
    ranks = np.empty(len(utilities), np.int64)
    ranks[order] = np.arange(len(utilities)) - starts[display] + 1
    weights = np.exp(utilities - np.maximum.reduceat(utilities, starts)[display])
    share = weights / np.add.reduceat(weights, starts)[display]
    return np.add.reduceat(np.where(ranks <= CUTOFF, share / ranks, 0.0), starts), ranks


def displays(world: OutbrainWorld, seed: int, start: int, stop: int, total: int) -> Displays:
    """Draw displays start to stop of `total`; the result depends on the block alone, not on other draws."""
    draw, sizes, n = stream_generator(seed, "outbrain displays", start), world.sizes, stop - start
    ids = np.arange(start + 1, stop + 1)
    times = ((np.arange(start, stop) + draw.random(n)) / total * _DAYS * _DAY_MS).astype(np.int64)
    pages = ids_from_uniforms(draw.random(n), sizes.pages, 0.9).astype(np.int64)
    platforms = np.where(draw.random(n) < _NO_PLATFORM, -1, draw.choice(PLATFORMS, n, p=[0.4, 0.5, 0.1]))
    places = np.where(draw.random(n) < _NO_PLACE, -1, ids_from_uniforms(draw.random(n), sizes.places, 0.8))
    known = draw.random(n) >= _NO_EVENT
    ads, counts = _shown(draw, n, sizes.ads)
    labelled = ids % (_UNLABELLED + 1) != 0
    event = pl.DataFrame(
        {
            "display_id": ids,
            "uuid": [f"{value:014x}" for value in draw.integers(0, 2**56, n).tolist()],
            "document_id": world.document_ids[pages],
            "timestamp": times,
            "platform": pl.Series(platforms + 1).replace(0, None),
            "geo_location": pl.Series(world.geo[places]).set(pl.Series(places < 0), None),
        }
    ).filter(known)

    kept = np.repeat(labelled, counts)
    display = np.repeat(np.arange(n), counts)[kept]
    ads, starts = ads[kept], np.cumsum(counts[labelled]) - counts[labelled]
    recorded = lambda values: np.where(known, values, -1)[display]  # noqa: E731
    utilities = world.utilities(ads, recorded(pages), recorded(platforms), recorded(places))
    noisy = utilities + draw.gumbel(size=len(kept))[kept]  # Gumbel-max: the argmax is a draw from the softmax
    clicked = noisy == np.repeat(np.maximum.reduceat(noisy, starts), counts[labelled])
    expected, ranks = expected_precision(utilities, starts)
    reached = np.add.reduceat(np.where(clicked & (ranks <= CUTOFF), 1 / ranks, 0.0), starts)
    clicks = pl.DataFrame({"display_id": ids[display], "ad_id": world.ad_ids[ads], "clicked": clicked.astype(np.int8)})
    days = np.where(known, times // _DAY_MS, 0)[labelled]  # a display without an event belongs to the first day, which is for training
    return Displays(ids[labelled], event, clicks, days, expected, reached)


def _shown(draw: np.random.Generator, n: int, num_ads: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw distinct ads for each of n displays.

    Returns:
        the ads, one display after another, and the number of ads of each display.
    """
    wanted = 2 + np.searchsorted(np.cumsum(_COUNTS), draw.random(n) * _COUNTS.sum(), side="right").clip(max=len(_COUNTS) - 1)
    drawn = ids_from_uniforms(draw.random(n * _CANDIDATES), num_ads, 0.7).reshape(n, _CANDIDATES)
    fresh = np.ones(drawn.shape, bool)
    for place in range(1, _CANDIDATES):
        for other in range(place):
            fresh[:, place] &= drawn[:, place] != drawn[:, other]
    alone = fresh.sum(1) == 1
    drawn[alone, 1], fresh[alone, 1] = (drawn[alone, 0] + 1) % num_ads, True
    shown = fresh & (np.cumsum(fresh, 1) <= wanted[:, np.newaxis])
    return drawn[shown].astype(np.int64), shown.sum(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, draw the files, and print a summary. Raises UserError on invalid flags or existing files; no partial files are left."""
    parser = Parser(prog=f"python -m {NAME}", description=__doc__)
    parser.add_argument(
        "--displays", type=int, default=20_000, metavar="N", help="displays, with one click and about 5 ads each (default: %(default)s)"
    )
    parser.add_argument("--dst", type=Path, required=True, metavar="FOLDER", help="folder of the files; created if missing")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
    about = "factor of all utilities; with 0, all orders of ads are equally good"
    parser.add_argument("--signal", type=float, default=1.0, metavar="X", help=f"{about} (default: 1)")
    flags = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    if not 100 <= flags.displays <= _MAX_DISPLAYS:
        raise UserError(f"--displays {flags.displays}: expected 100 to {_MAX_DISPLAYS:,}")
    if flags.seed < 0 or not 0 <= flags.signal <= 100:
        raise UserError(f"--seed {flags.seed} --signal {flags.signal:g}: expected a seed of 0 or more, and a signal from 0 to 100")
    world = OutbrainWorld(Sizes.of(flags.displays), flags.seed, flags.signal)
    tables = {"promoted_content": world.promoted_content(), "documents_meta": world.documents_meta()}
    tables |= world.aspects()
    names = [CLICKS, EVENTS, *(f"{name}.csv" for name in tables), TRUTH, TRUTH_ROWS]
    _refuse(flags.dst, names)
    scratch = Scratch(flags.dst, "writing")
    try:
        for name, frame in tables.items():
            with naming(path := scratch.folder / f"{name}.csv"):
                frame.write_csv(path)
        rows, truth = _write_displays(scratch.folder, world, flags)
        with uninterrupted():
            _refuse(flags.dst, names)  # again: drawing takes long, and another run may have written there
            for name in names:
                (scratch.folder / name).rename(flags.dst / name)
    finally:
        scratch.remove()
    best = truth["bayes_map_at_12"]
    print(f"{flags.dst}: {flags.displays:,} displays with {rows:,} ads, {world.sizes.ads:,} of them distinct; best possible MAP@12 {best:.4f}")
    return 0


def _write_displays(folder: Path, world: OutbrainWorld, flags) -> tuple[int, dict]:
    """Write clicks, events and the planted signal; returns the number of click rows and the content of the JSON file."""
    total, rows, found = flags.displays + (flags.displays - 1) // _UNLABELLED, 0, []
    files = {name: (folder / name).open("wb") for name in (CLICKS, EVENTS)}
    try:
        for block in tqdm(list(_blocks(total)), desc="displays", unit="block", disable=None):
            made = displays(world, flags.seed, *block, total)
            _append(files[CLICKS], folder / CLICKS, made.clicks, first=block[0] == 0)
            _append(files[EVENTS], folder / EVENTS, made.events, first=block[0] == 0)
            columns = {"display_id": made.ids, "day": made.days.astype(np.int8), "expected_ap": made.expected, "reached_ap": made.reached}
            found.append(pl.DataFrame(columns).with_columns(pl.col("expected_ap", "reached_ap").cast(pl.Float32)))
            rows += made.clicks.height
        for name, file in files.items():
            with naming(folder / name):
                file.close()
    finally:
        for file in files.values():
            with contextlib.suppress(OSError):  # closing fails on a full disk, too; the error being raised says so already
                file.close()
    frame = pl.concat(found)
    last = frame.filter(pl.col("day") >= _DAYS - _LAST_DAYS)
    truth = {
        "bayes_map_at_12": round(float(last["expected_ap"].cast(pl.Float64).mean()), 6),
        "map_at_12_of_the_true_order": round(float(last["reached_ap"].cast(pl.Float64).mean()), 6),
        "days": [_DAYS - _LAST_DAYS, _DAYS - 1],
        "displays": flags.displays,
        "rows": rows,
        "seed": flags.seed,
        "signal": flags.signal,
        "sizes": asdict(world.sizes),
    }
    with naming(folder / TRUTH_ROWS):
        frame.write_parquet(folder / TRUTH_ROWS)
    with naming(folder / TRUTH):
        (folder / TRUTH).write_text(json.dumps(truth, indent=1) + "\n")
    return rows, truth


def _blocks(total: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _AT_ONCE, total)) for start in range(0, total, _AT_ONCE))


def _append(file: BinaryIO, path: Path, frame: pl.DataFrame, first: bool) -> None:
    with naming(path):
        file.write(frame.write_csv(include_header=first, null_value="\\N").encode())


def _refuse(folder: Path, names: Sequence[str]) -> None:
    if there := next((folder / name for name in names if (folder / name).exists()), None):
        raise UserError(f"{there}: already exists; choose another --dst")


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
