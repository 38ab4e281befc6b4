"""Write random raw files in the form of two public datasets, for examples and tests of `preproc.table`.

    python -m benchmarks.table_logs --dst LOGS

The command writes LOGS/ratings.dat in the form of MovieLens (user::movie::rating::timestamp, no header), its side tables LOGS/users.csv and
LOGS/movies.csv (genres as one-hot columns), and LOGS/pairs.dat, users and movies without ratings. LOGS/clicks_0.csv.gz, LOGS/clicks_1.csv.gz and
LOGS/today.csv.gz have the form of Avazu (hexadecimal texts, hours as 14102100, whole numbers that are ids); the last has no clicks.
"""

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError

NAME = "benchmarks.table_logs"
GENRES = ("Action", "Comedy", "Drama", "Horror", "Musical", "Romance", "Thriller", "War")
CLICKS = ("id", "click", "hour", "C1", "banner_pos", "site_id", "app_id", "device_id", "device_type", "C14", "C17")
OCCUPATIONS = ("artist", "doctor", "engineer", "lawyer", "student", "writer")
_IDS = 600  # users, and movies
_START = 880_000_000  # 20 November 1997


class Ratings(NamedTuple):
    """Lines of ratings from 1 to 5, sorted by no column, and of the side tables of users and movies, with their headers."""

    ratings: list[str]
    users: list[str]
    movies: list[str]


def ratings(rows: int, seed: int) -> Ratings:
    """Draw ratings. Users prefer genres, more so those that their occupation prefers; movies differ in quality."""
    draw = np.random.default_rng((seed, 1))
    users, movies = np.minimum(draw.zipf(1.3, (2, rows)), _IDS)
    occupations = draw.integers(0, len(OCCUPATIONS), _IDS + 1)
    tastes = draw.normal(size=(_IDS + 1, len(GENRES))) + draw.normal(size=(len(OCCUPATIONS), len(GENRES)))[occupations]
    quality, genres = draw.normal(size=_IDS + 1), draw.random((_IDS + 1, len(GENRES))) < 0.25
    liking = quality[movies] + (tastes[users] * genres[movies]).sum(1) / np.maximum(genres[movies].sum(1), 1)
    stars = np.clip(np.rint(3.3 + liking + draw.normal(scale=0.7, size=rows)), 1, 5).astype(int)
    times = _START + draw.integers(0, 200 * 86_400, rows)
    ages, years = draw.integers(18, 80, _IDS + 1), draw.integers(1950, 1998, _IDS + 1)
    return Ratings(
        [f"{user}::{movie}::{star}::{time}" for user, movie, star, time in zip(users, movies, stars, times, strict=True)],
        ["user_id,age,occupation", *(f"{user},{ages[user]},{OCCUPATIONS[occupations[user]]}" for user in range(1, _IDS + 1))],
        [
            ",".join(["movie_id", "year", *(f"genre_{genre}" for genre in GENRES)]),
            *(",".join(map(str, [movie, years[movie], *genres[movie].astype(int)])) for movie in range(1, _IDS + 1)),
        ],
    )


def clicks(rows: int, seed: int, day: int) -> list[str]:
    """Draw lines of a day of clicks. The values of every column differ in click rate; one field in 20 is missing."""
    draw = np.random.default_rng((seed, 2, day))
    hours, ids = np.sort(draw.integers(0, 24, rows)), draw.integers(0, 2**63, rows, dtype=np.uint64)
    columns = {"C1": 1001 + draw.integers(0, 7, rows), "banner_pos": draw.choice(3, rows, p=[0.7, 0.27, 0.03])}
    columns |= {name: np.minimum(draw.zipf(1.4, rows), size) for name, size in (("site_id", 400), ("app_id", 300), ("device_id", 5000))}
    columns |= {
        "device_type": draw.choice([0, 1, 4, 5], rows),
        "C14": 15700 + 3 * np.minimum(draw.zipf(1.3, rows), 800),
        "C17": draw.integers(1700, 1900, rows),
    }
    effects = np.random.default_rng((seed, 3)).normal(scale=0.7, size=(len(columns), 30_000))
    logit = -1.6 + sum(effect[values] for effect, values in zip(effects, columns.values(), strict=True)) / 1.5
    clicked = draw.random(rows) < 1 / (1 + np.exp(-logit))
    texts = [ids.astype(str), clicked.astype(int).astype(str), np.array([f"1410{21 + day}{hour:02}" for hour in hours])]
    for name, values in columns.items():
        text = np.array([f"{value * 2654435761 % 2**32:08x}" if "_id" in name else str(value) for value in values.tolist()])
        texts.append(np.where(draw.random(rows) < 0.05, "", text))
    return [",".join(row) for row in zip(*texts, strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    """Draw and write the files. Raises UserError where a flag is invalid."""
    parser = Parser(prog=f"python -m {NAME}", description=__doc__)
    parser.add_argument("--dst", type=Path, required=True, metavar="FOLDER", help="folder for the files; it is created if it does not exist")
    parser.add_argument("--rows", type=int, default=60_000, metavar="N", help="number of ratings, and of clicks of two days (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
    flags = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    if flags.rows < 100 or flags.seed < 0:
        raise UserError(f"--rows {flags.rows} --seed {flags.seed}: expected at least 100 rows, and a seed of 0 or more")
    flags.dst.mkdir(parents=True, exist_ok=True)
    drawn = ratings(flags.rows, flags.seed)
    _write(flags.dst / "ratings.dat", drawn.ratings)
    _write(flags.dst / "users.csv", drawn.users, headed=True)
    _write(flags.dst / "movies.csv", drawn.movies, headed=True)
    pairs = (line.split("::") for line in drawn.ratings[: flags.rows // 50])
    _write(flags.dst / "pairs.dat", ["::".join(fields[:2] + fields[3:]) for fields in pairs])
    for day in range(3):
        lines = clicks(flags.rows // 2 if day < 2 else flags.rows // 50, flags.seed, day)
        if day < 2:
            _write(flags.dst / f"clicks_{day}.csv.gz", [",".join(CLICKS), *lines], headed=True)
        else:
            rows = [[name for name in CLICKS if name != "click"], *([fields[0], *fields[2:]] for fields in (line.split(",") for line in lines))]
            _write(flags.dst / "today.csv.gz", [",".join(row) for row in rows], headed=True)
    return 0


def _write(path: Path, lines: list[str], headed: bool = False) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text, 6, mtime=0) if path.suffix == ".gz" else text)
    print(f"{path}: {len(lines) - headed:,} rows")


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
