"""Random combinations of what a model can be trained with, each cut at random steps and resumed; ./scripts/test cuts only every pair of values."""

import contextlib
import gc
import io
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from campaign import Row

from tests.combinations.combined import ALL, EVERY, MODELS, STEPS, Combination, features_of, write_data

CUTS = 3  # of each combination


def all_models(folder: Path, seed: int, count: int) -> list[Callable[[], Row]]:
    """Return a function for each model; they cut runs of so many combinations in all and return their lines of the table.

    A line's function raises AssertionError where a run that was cut ends with another bit than the unbroken one.
    """
    drawn = random.Random(seed).sample(ALL, min(count, len(ALL)))
    return [lambda model=model: _cut_all(folder / model, [one for one in drawn if one.model == model], seed) for model in MODELS]


def _cut_all(folder: Path, combinations: list[Combination], seed: int) -> Row:
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    from tests.combinations.resumes import SIGNAL, Unbroken

    row, draw = Row(f"cut and resumed: {len(combinations)} combinations of {folder.name}"), random.Random(f"{seed} {folder.name}")
    with_all: Counter = Counter()
    data = {lists: write_data(folder / f"data-{lists}", features_of(lists)) for lists in (False, True)}
    for one in combinations:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                run = Unbroken(one, data[one.lists], folder / "runs")
                for _ in range(CUTS):
                    cut = drawn_cut(one, draw)
                    run.check(cut)
                    row.tries += 1
                    row.lost.append(0 if cut.how == SIGNAL else STEPS - cut.ends)
                    row.outcome[f"{cut.how}: bit-identical to the unbroken run"] += 1
        except BaseException:
            print(f"{said.getvalue()}\n{one}", flush=True)
            raise
        with_all.update({"with skipped steps": run.position["skipped_steps"] > 0, "with reduced rates": run.position["rate_reductions"] > 0})
        print(f"  {one}: {CUTS} cuts, {run.position['skipped_steps']} steps skipped, {run.position['rate_reductions']} reductions", flush=True)
        run.release()
        shutil.rmtree(folder / "runs")
        gc.collect()  # graphs refer to themselves
    row.outcome |= {what: number for what, number in with_all.items() if number}
    return row


def drawn_cut(combination: Combination, draw: random.Random):
    """Draw a cut: begun at any step's checkpoint, ended by a signal or by `--max_steps`, see `cut_of`."""
    from tests.combinations.resumes import LIMIT, SIGNAL, STEPS_TO_STOP, Cut

    begins = draw.randint(1, STEPS - 3)
    how = draw.choice([SIGNAL, LIMIT]) if begins + STEPS_TO_STOP < STEPS else LIMIT
    ends = draw.randint(begins + (STEPS_TO_STOP if how == SIGNAL else 1), STEPS - 1)
    if how == LIMIT and combination.plateau:
        ends += ends % EVERY
    return Cut(begins, how, min(ends, STEPS - 1))
