"""Drawn logs of 10,000 to 90,000 rows of different kinds, whose labels follow a known chance of a click.

Rows are in the order of time, and the column `time` has their times. Sizes, effects and rows of a log depend on its kind and the seed only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

Draw = np.random.Generator
TIME, LABEL = "time", "clicked"
MIN_ROWS = 1000
_START = 1_700_000_000
_MINUTE = 60


@dataclass
class Log:
    """The columns of a log that is being drawn, and the logits of its clicks.

    Args:
        draw: the generator of all random numbers.
        rows: the number of rows.
    """

    draw: Draw
    rows: int
    ids: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: dict[str, np.ndarray] = field(default_factory=dict)

    def id_column(self, name: str, size: int, skew: float = 0.0) -> np.ndarray:
        """Add a column of ids up to `size`; the k-th most frequent one is drawn with a chance that falls as k^-skew. Return the ids."""
        chances = np.arange(1, size + 1, dtype=np.float64) ** -skew
        self.ids[name] = self.draw.choice(size, self.rows, p=chances / chances.sum())
        return self.ids[name]

    def number_column(self, name: str) -> np.ndarray:
        """Add a column of normal numbers and return them."""
        self.numbers[name] = np.round(self.draw.normal(size=self.rows), 4)
        return self.numbers[name]

    def effects(self, values: np.ndarray, spread: float) -> np.ndarray:
        """Draw an effect of each value, and return those of the rows."""
        return self.draw.normal(scale=spread, size=int(values.max()) + 1)[values]

    def affinity(self, one: np.ndarray, other: np.ndarray, factors: int, spread: float) -> np.ndarray:
        """Draw factors of the values of two columns, and return the rows' products, with a standard deviation of about `spread`."""
        left, right = (self.draw.normal(size=(int(values.max()) + 1, factors))[values] for values in (one, other))
        return (left * right).sum(axis=1) * spread / factors**0.5

    def clicks(self, logits: np.ndarray, rate: float) -> np.ndarray:
        """Draw labels with the logits' chances, shifted so that about `rate` of the rows are clicks."""
        low, high = -40.0, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if _chance(logits + middle).mean() < rate else (low, middle)
        return self.draw.random(self.rows) < _chance(logits + low)


def _chance(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def _between(draw: Draw, low: int, high: int) -> int:
    return int(draw.integers(low, high + 1))


# The kinds: each returns the logits of the rows -------------------------------------------------------------------------


def _main_effects(log: Log) -> np.ndarray:
    """Every value has an effect of its own, and numbers are linear; no interactions."""
    columns = [log.id_column(f"c{i}", _between(log.draw, 4, 300), 0.7) for i in range(8)]
    numbers = [log.number_column(f"n{i}") for i in range(4)]
    return sum(log.effects(column, 0.35) for column in columns) + sum(log.draw.normal(scale=0.25) * number for number in numbers)


def _ratings(log: Log) -> np.ndarray:
    """Users and items with biases and latent factors, and nothing else."""
    user, item = log.id_column("user", _between(log.draw, 600, 1200), 0.5), log.id_column("item", _between(log.draw, 900, 1800), 0.8)
    return log.effects(user, 0.6) + log.effects(item, 0.8) + log.affinity(user, item, 3, 0.8)


def _new_users(log: Log) -> np.ndarray:
    """Users who come and go: most of the last rows' users are new. Items have kinds, and users have ages."""
    count = _between(log.draw, 700, 1200)
    user = np.clip(np.sort(log.draw.integers(0, count, log.rows)) + log.draw.integers(-60, 61, log.rows), 0, count - 1)
    log.ids["user"] = user
    item = log.id_column("item", _between(log.draw, 700, 1500), 0.8)
    kind, age = log.draw.integers(0, 12, int(item.max()) + 1)[item], log.draw.integers(18, 70, count)[user]
    log.ids["kind"], log.numbers["age"] = kind, age
    job = log.draw.integers(0, 15, count)[user]
    log.ids["job"] = job
    tastes = log.affinity(job, kind, 3, 0.5)
    return log.effects(user, 0.5) + log.effects(item, 0.8) + tastes + 0.01 * age + log.affinity(user, item, 3, 0.5)


def _few_crosses(log: Log) -> np.ndarray:
    """Few columns of few values: pairs of them have an effect beside the values' own."""
    columns = [log.id_column(f"c{i}", _between(log.draw, 3, 14)) for i in range(8)]
    logits = sum(log.effects(column, 0.3) for column in columns)
    return logits + sum(log.effects(columns[i] * 100 + columns[i + 1], 0.45) for i in range(0, 8, 2))


def _numbers(log: Log) -> np.ndarray:
    """Numbers alone: linear, one bent, one product; and two columns of ids without an effect."""
    numbers = [log.number_column(f"n{i}") for i in range(10)]
    for i in range(2):
        log.id_column(f"c{i}", _between(log.draw, 5, 200), 0.5)
    linear = sum(log.draw.normal(scale=0.35) * number for number in numbers[:6])
    return linear + 0.25 * np.abs(numbers[6]) + 0.2 * numbers[0] * numbers[7]


def _singletons(log: Log) -> np.ndarray:
    """Two columns in which most values stand once or twice, beside a few frequent ones."""
    rare = [log.id_column(f"id{i}", log.rows, skew) for i, skew in enumerate((0.6, 0.9))]
    usual = [log.id_column(f"c{i}", _between(log.draw, 10, 100), 0.8) for i in range(4)]
    return sum(log.effects(column, 0.5) for column in rare) + sum(log.effects(column, 0.4) for column in usual)


def _drift(log: Log) -> np.ndarray:
    """Effects that change over time, and items that come later."""
    count, age = _between(log.draw, 200, 500), np.linspace(0, 1, log.rows)
    item = log.ids["item"] = np.minimum(log.draw.zipf(1.4, log.rows) - 1 + (age * count).astype(int), 2 * count)
    user, place = log.id_column("user", _between(log.draw, 1000, 2500), 0.6), log.id_column("place", _between(log.draw, 10, 40), 0.5)
    number = log.number_column("n0")
    turned = (1 - age) * log.effects(place, 0.5) + age * log.effects(place, 0.5)
    return log.effects(item, 0.6) + log.effects(user, 0.5) + turned + (0.4 - 0.6 * age) * number


def _rare_clicks(log: Log) -> np.ndarray:
    """Columns of an advertiser's log: sites, ads and devices, with a slight affinity of sites and ads."""
    site, ad = log.id_column("site", _between(log.draw, 200, 800), 1.0), log.id_column("ad", _between(log.draw, 100, 500), 0.9)
    device, hour = log.id_column("device", _between(log.draw, 4, 30), 0.8), log.id_column("hour", 24)
    return log.effects(site, 0.6) + log.effects(ad, 0.6) + log.effects(device, 0.3) + log.effects(hour, 0.2) + log.affinity(site, ad, 2, 0.4)


def _small_mixture(log: Log) -> np.ndarray:
    """Few rows with a bit of everything: values, numbers, one pair."""
    columns = [log.id_column(f"c{i}", _between(log.draw, 5, 60), 0.5) for i in range(5)]
    numbers = [log.number_column(f"n{i}") for i in range(3)]
    logits = sum(log.effects(column, 0.35) for column in columns) + log.affinity(columns[0], columns[1], 2, 0.4)
    return logits + sum(log.draw.normal(scale=0.3) * number for number in numbers) + 0.2 * numbers[0] * numbers[1]


def _wide(log: Log) -> np.ndarray:
    """Forty columns, of which a third have no effect."""
    columns = [log.id_column(f"c{i}", _between(log.draw, 3, 400), 0.9) for i in range(28)]
    numbers = [log.number_column(f"n{i}") for i in range(12)]
    logits = sum(log.effects(column, 0.22) for column in columns[:19]) + log.affinity(columns[0], columns[1], 2, 0.3)
    return logits + sum(log.draw.normal(scale=0.12) * number for number in numbers[:8])


def _three_columns(log: Log) -> np.ndarray:
    """Shop, product and price."""
    shop, product = log.id_column("shop", _between(log.draw, 20, 80), 0.5), log.id_column("product", _between(log.draw, 300, 900), 0.7)
    price = log.number_column("price")
    return log.effects(shop, 0.5) + log.effects(product, 0.6) - 0.4 * price + log.effects(shop, 0.2) * price


def _noisy(log: Log) -> np.ndarray:
    """Effects that hardly show."""
    columns = [log.id_column(f"c{i}", _between(log.draw, 10, 500), 0.6) for i in range(8)]
    numbers = [log.number_column(f"n{i}") for i in range(4)]
    return sum(log.effects(column, 0.1) for column in columns) + sum(log.draw.normal(scale=0.05) * number for number in numbers)


def _many_values(log: Log) -> np.ndarray:
    """Columns of thousands of values, each with a small effect, and pairs of them with an affinity."""
    columns = [log.id_column(f"c{i}", _between(log.draw, 1000, 5000), 0.9) for i in range(8)]
    return sum(log.effects(column, 0.3) for column in columns) + log.affinity(columns[0], columns[1], 2, 0.5)


class Kind(NamedTuple):
    """A kind of log: its logits, the range of its rows, the share of clicks, and two columns that matrix factorisation takes as users and items."""

    logits: Callable[[Log], np.ndarray]
    rows: tuple[int, int]
    rate: float
    pair: tuple[str, str] | None = None


KINDS = {
    "small_mixture": Kind(_small_mixture, (10_000, 12_000), 0.5),
    "numbers": Kind(_numbers, (10_000, 25_000), 0.3),
    "few_crosses": Kind(_few_crosses, (15_000, 40_000), 0.4),
    "main_effects": Kind(_main_effects, (20_000, 50_000), 0.25),
    "three_columns": Kind(_three_columns, (15_000, 40_000), 0.3, ("shop", "product")),
    "noisy": Kind(_noisy, (20_000, 50_000), 0.4),
    "wide": Kind(_wide, (20_000, 40_000), 0.2),
    "singletons": Kind(_singletons, (20_000, 50_000), 0.3),
    "many_values": Kind(_many_values, (30_000, 60_000), 0.2),
    "drift": Kind(_drift, (30_000, 60_000), 0.3, ("user", "item")),
    "new_users": Kind(_new_users, (50_000, 90_000), 0.55, ("user", "item")),
    "ratings": Kind(_ratings, (50_000, 90_000), 0.55, ("user", "item")),
    "rare_clicks": Kind(_rare_clicks, (80_000, 90_000), 0.02, ("site", "ad")),
}


def write_log(path: Path, kind: str, seed: int, rows: int | None = None) -> list[str]:
    """Draw a log, write it as CSV, and return the names of its columns of ids; `rows` replaces the kind's own number of rows."""
    import polars as pl

    drawn = KINDS[kind]
    draw = np.random.default_rng((seed, list(KINDS).index(kind)))
    own = _between(draw, *drawn.rows)
    log = Log(draw, own if rows is None else rows)
    clicked = log.clicks(drawn.logits(log), drawn.rate)
    times = _START + _MINUTE * np.arange(log.rows)
    pl.DataFrame({TIME: times, **log.ids, **log.numbers, LABEL: clicked.astype(np.int8)}).write_csv(path)
    return list(log.ids)
