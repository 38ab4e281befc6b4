"""Every combination of inputs, dataset, model, batch and protocol on the real server; ./scripts/test covers only every pair."""

import itertools
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "serving")]

from campaign import Row  # noqa: E402
from real_server import PORTS  # noqa: E402
from served_matrix import ALL, BATCHES, SCHEMES, Served, check_case  # noqa: E402

from serving.server import Server  # noqa: E402


def all_combinations(folder: Path) -> Row:
    """Check every combination, return a line of the table; raise AssertionError where a row's score differs from the expected one."""
    folder.mkdir()
    row, served = Row("requests to the real server: inputs x dataset x model x batch x protocol"), Served(folder, ALL)
    with Server(served.repository, PORTS) as server:
        server.wait_until_ready()
        for kind, scheme, batch in itertools.product(ALL, SCHEMES, BATCHES):
            check_case(server, served, kind, scheme, batch)
            row.tries += 1
            row.outcome[f"{'the bits' if served.rows(kind).native else 'the scores to 1e-6'} of the same rows by `over_arrays`"] += 1
    return row
