"""Kill training runs at random points, many times, damage their files, and check the checkpoints and the results.

python tests/faults/campaign.py --save_kills 50 --other_kills 20       # what scripts/faults runs; prints a table
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from victim import EVERY, MODELS, PHASES, RUN, Victim, check_all, differing, interrupted_in, write_dataset  # noqa: E402

STEPS = 96  # steps of a run: four epochs


def numbers(folder: Path) -> set[int]:
    """Return the inode numbers of the folders in which checkpoints are being written."""
    found = set()
    for entry in folder.glob(".step-*.writing"):
        with contextlib.suppress(FileNotFoundError):
            found.add(entry.stat().st_ino)
    return found


def _fill(disk: Path, room: int) -> None:
    """Fill a file system, to which a run writes meanwhile, but for so many bytes."""
    with (disk / "ballast").open("wb") as file:
        for _ in range(100):
            found = os.statvfs(disk)
            more = found.f_bavail * found.f_frsize - room
            if more <= 0:
                return
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, more)


@dataclass
class Row:
    """A line of the table."""

    fault: str
    tries: int = 0
    lost: list[int] = field(default_factory=list)  # steps that had to be repeated
    outcome: Counter = field(default_factory=Counter)

    def __str__(self) -> str:
        lost = f"{min(self.lost)} to {max(self.lost)}, mean {sum(self.lost) / len(self.lost):.1f}" if self.lost else "-"
        return f"| {self.fault} | {self.tries} | {lost} | {'; '.join(f'{count} times {what}' for what, count in self.outcome.items())} |"


class Campaign:
    """The faults, one method each.

    Args:
        folder: an empty folder.
        seed: seed of the random points.
        flags: flags of every run, for the model, its training and the training batches.
        model: name of the model in the table; empty for DLRM.
    """

    def __init__(self, folder: Path, seed: int, flags: tuple[str, ...] = RUN, model: str = ""):
        self.folder, self.draw, self._flags, self._model = folder, random.Random(seed), flags, model
        self.dataset = write_dataset(folder / "dataset")
        self.unbroken = folder / "unbroken"
        start = time.monotonic()
        run = self.run(self.unbroken)
        assert run.end() == 0, run.err
        self.run_s = time.monotonic() - start

    def run(self, checkpoints: Path, *flags, dataset: Path | None = None, **options) -> Victim:
        data = ("--dataset_path", dataset or self.dataset, "--save_checkpoint_path", checkpoints, "--checkpoint_every_steps", EVERY)
        return Victim(self.folder, *data, *self._flags, "--max_steps", STEPS, "--epochs", "4", *flags, **options)

    def kills(self, count: int, in_save: bool, workers: int = 1) -> Row:
        """Kill a worker, resume the run, kill again, …; compare each run that comes to its end with the unbroken one."""
        where = "inside a save" if in_save else "anywhere else"
        several = f", {workers} workers" if workers > 1 else ""
        row = Row(f"`kill -9` of a worker, {where}{several}" + (f", {self._model}" if self._model else ""))
        chain, folder, ended = 0, self.folder / "chain", True
        while row.tries < count or not ended:
            if ended:
                chain += 1
                folder = self.folder / f"{'save' if in_save else 'other'}-{workers}-{chain}"
            before = set(check_all(folder))
            run = self.run(folder, "--resume", "auto", workers=workers)
            hit = row.tries < count and (self._strike_in_save(run, folder) if in_save else self._strike_anywhere(run))
            code, ended = run.end(), False
            if not hit:
                assert code == 0, run.err
                ended = True
                assert not differing(self.unbroken, folder), differing(self.unbroken, folder)
                row.outcome["run to the end: bit-identical to the unbroken one"] += 1
                continue
            assert code != 0
            row.tries += 1
            left = check_all(folder)  # every visible checkpoint must be complete
            assert len(left) >= min(len(before), 3) and (not before or max(left) >= max(before)), (before, left)
            row.lost.append(max(run.step - max(left, default=0), 0))
            phase = interrupted_in(folder)
            row.outcome[PHASES[phase] if phase else "between two saves" if run.step else "before the first step"] += 1
            print(f"  {row.fault}: try {row.tries}, step {run.step}, {phase or 'no save'}, checkpoints {left}", flush=True)
        return row

    def _strike_in_save(self, run: Victim, folder: Path) -> bool:
        saves, old, seen = self.draw.randint(1, 2), numbers(folder), set()

        def begun() -> bool:
            seen.update(numbers(folder) - old)
            return len(seen) >= saves

        if not run.wait_until(begun):
            return False
        time.sleep(self.draw.uniform(0, 0.25) if self.draw.random() < 0.7 else self.draw.uniform(0, 1.0))
        return self._strike(run)

    def _strike_anywhere(self, run: Victim) -> bool:
        kind, mark = self.draw.random(), time.monotonic()
        if kind < 0.2:  # while the run starts and restores
            after = self.draw.uniform(0, 0.5 * self.run_s)
            if not run.wait_until(lambda: time.monotonic() - mark > after):
                return False
        else:
            begin = run.step
            wanted = self.draw.randint(1, 20)
            if not run.wait_until(lambda: (run.step and not begin and self._set_begin(run)) or run.step >= self._begin + wanted):
                return False
            time.sleep(self.draw.uniform(0, 0.05))
        return self._strike(run)

    _begin = 0

    def _set_begin(self, run: Victim) -> bool:
        self._begin = self._begin or run.step
        return False

    def _strike(self, run: Victim) -> bool:
        self._begin = 0
        run.kill(self.draw.randint(0, 7))
        return run.end() != 0

    def terminations(self, count: int) -> Row:
        """Send SIGTERM at random points and resume each time; compare the result with the unbroken run."""
        row, folder = Row("SIGTERM"), self.folder / "terminated"
        for _ in range(count):
            run, wanted = self.run(folder, "--resume", "auto"), self.draw.randint(1, STEPS // count - 2)
            mark = lambda: run.step and (self._set_begin(run) or run.step >= self._begin + wanted)  # noqa: E731, B023
            assert run.wait_until(mark)
            self._begin = 0
            for number in run.workers():
                run.process.send_signal(signal.SIGTERM) if number == run.process.pid else None
            assert run.end() == 143, run.err
            row.tries += 1
            row.lost.append(max(run.step - max(check_all(folder)), 0))
            row.outcome["exit 143, the step saved"] += 1
        run = self.run(folder, "--resume", "auto")
        assert run.end() == 0 and not differing(self.unbroken, folder)
        row.outcome["run to the end: bit-identical to the unbroken one"] += 1
        return row

    def flipped_bits(self, count: int) -> Row:
        """Flip a random bit of the newest checkpoint: it is refused in one line; with --restore_fallback the one before is taken."""
        row = Row("a bit flipped in a checkpoint")
        for i in range(count):
            folder = self.folder / f"flipped-{i}"
            shutil.copytree(self.unbroken, folder)
            newest = folder / (folder / "latest").read_text().strip()
            path = self.draw.choice(sorted(path for path in newest.rglob("*") if path.is_file()))
            content = bytearray(path.read_bytes())
            bit = self.draw.randrange(8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
            path.write_bytes(content)
            flags = ("--restore_checkpoint_path", folder)
            run = self.run(
                folder, *flags, "--max_steps", STEPS + 1, "--epochs", "5"
            )  # beyond the unbroken run's steps, because a finished run reads nothing
            code, row.tries = run.end(), row.tries + 1
            assert code == 1 and len(run.errors) == 1 and str(newest) in run.errors[0] and "damaged" in run.errors[0], (path, bit, run.err)
            assert "--restore_fallback" in run.errors[0]
            if i == 0:
                run = self.run(folder, *flags, "--restore_fallback")
                assert run.end() == 0, run.err
                assert "damaged" in run.err and "--restore_fallback: " in run.err
                assert not differing(self.unbroken, folder)
                row.outcome["`--restore_fallback`: bit-identical to the unbroken run"] += 1
            row.outcome["refused in one line"] += 1
            shutil.rmtree(folder)
        return row

    def full_disk(self, count: int) -> Row:
        """Fill the disk during a run, but for 0 to 3 checkpoints' room: one line, earlier checkpoints stay complete, and it goes on elsewhere.

        Each run has the disk, a tmpfs, in a mount namespace of its own.
        """
        row = Row("disk full during a save" + (f", {self._model}" if self._model else ""))
        newest = self.unbroken / (self.unbroken / "latest").read_text().strip()
        saved = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
        for i in range(count):
            disk, copy = self.folder / f"disk-{i}", self.folder / f"copy-{i}"
            disk.mkdir()
            script = f'mount -t tmpfs -o size=128m tmpfs "{disk}" || exit 77; "$@"; code=$?; cp -r "{disk}/c" "{copy}"; exit $code'
            run = self.run(disk / "c", around=("unshare", "-rm", "sh", "-c", script, "sh"))
            wanted = self.draw.randint(1, 8)
            if run.wait_until(lambda: run.step >= wanted):  # noqa: B023
                _fill(Path(f"/proc/{run.process.pid}/root{disk}"), int(3 * saved * (i + self.draw.random()) / count))
            code = run.end()
            if code == 77 or "unshare" in run.err:
                row.outcome["not tried: this machine allows no mount"] += 1
                return row
            row.tries += 1
            steps = check_all(copy)
            if code == 0:
                row.outcome["enough room"] += 1
            else:
                assert code == 1 and len(run.errors) == 1 and "No space left on device" in run.errors[0], (code, run.err)
                assert interrupted_in(copy) == "", steps
                row.lost.append(run.step - max(steps, default=0))
                row.outcome["one line, nothing half-written, earlier ones whole"] += 1
                run = self.run(copy, "--resume", "auto")
                assert run.end() == 0, run.err
                row.outcome["run to the end elsewhere: bit-identical to the unbroken one"] += 1
            assert not differing(self.unbroken, copy), differing(self.unbroken, copy)
            shutil.rmtree(copy)
        return row

    def damaged_dataset(self, count: int) -> Row:
        """Cut a file of the dataset short, or delete it before it is opened, during a run."""
        row = Row("a dataset file truncated or deleted")
        for i in range(count):
            data, folder = self.folder / f"data-{i}", self.folder / f"damaged-{i}"
            shutil.copytree(self.dataset, data)
            run = self.run(folder, "--test_freq", "60", dataset=data)
            assert run.wait_until(lambda: run.step >= EVERY + 1)  # noqa: B023
            victim = self.draw.choice(sorted((data / "train").iterdir()))
            if i % 2:
                shutil.rmtree(data / "test")
            else:
                with victim.open("r+b") as file:
                    file.truncate(10)
            code = run.end()
            expected = "No such file or directory" if i % 2 else "cut short after this run started"
            assert code == 1 and len(run.errors) == 1 and expected in run.errors[0] and str(data) in run.errors[0], run.err
            assert check_all(folder)
            row.tries += 1
            row.lost.append(run.step - max(check_all(folder)))
            row.outcome["one line that names the file"] += 1
        return row

    def other_model(self) -> Row:
        """Restore a checkpoint into another model."""
        row = Row("a checkpoint of another model")
        for flags in (("--embedding_dim", "8", "--bottom_mlp_dims", "8"), ("--top_mlp_dims", "8,1")):
            run = self.run(self.folder / "other", "--restore_checkpoint_path", self.unbroken, *flags)
            assert run.end() == 1 and len(run.errors) == 1 and "the checkpoint's model has" in run.errors[0], run.err
            row.tries += 1
            row.outcome["refused in one line before anything is allocated"] += 1
        return row

    def not_finite(self) -> Row:
        """Train until the loss is not finite."""
        row, folder = Row("a loss that is not finite"), self.folder / "nan"
        run = self.run(folder, "--optimizer", "sgd", "--learning_rate", "3e38")
        assert run.end() == 1 and len(run.errors) == 1 and "loss" in run.errors[0], run.err
        check_all(folder)
        row.tries += 1
        row.outcome["one line that names the step; no checkpoint with such weights"] += 1
        return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--save_kills", type=int, default=50, help="kills inside a save, a fifth of them with two workers; a few more of other models"
    )
    parser.add_argument("--other_kills", type=int, default=20, help="kills anywhere else, a fifth of them with two workers")
    parser.add_argument("--others", type=int, default=6, help="tries of each other fault")
    parser.add_argument("--requests", type=int, default=5000, help="requests of raw rows under publishing and kills; serving_fire.py sends more")
    parser.add_argument("--combinations", type=int, default=100, help="combinations of models, optimizers and ways to train whose runs are cut")
    parser.add_argument("--only", choices=("training", "combinations", "lazy", "serving"), help="group of faults to cause (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random points")
    options = parser.parse_args()
    import combined_cuts  # these import names of this file
    import disturbances
    import lazy_product
    import serving_faults
    import serving_matrix

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for name in ("dlrm", *MODELS):
            (Path(folder) / name).mkdir()
        campaign = Campaign(Path(folder) / "dlrm", options.seed)
        others = [Campaign(Path(folder) / name, options.seed, flags, name) for name, flags in MODELS.items()]
        print(f"unbroken run: {campaign.run_s:.1f} s", flush=True)
        faults = [
            lambda: campaign.kills(options.save_kills - options.save_kills // 5, in_save=True),
            lambda: campaign.kills(options.save_kills // 5, in_save=True, workers=2),
            lambda: campaign.kills(options.other_kills - options.other_kills // 5, in_save=False),
            lambda: campaign.kills(options.other_kills // 5, in_save=False, workers=2),
            *(lambda other=other: other.kills(options.save_kills // 10, in_save=True) for other in others),
            *(lambda other=other: other.kills(options.other_kills // 10, in_save=False) for other in others),
            *(lambda other=other: other.kills(options.save_kills // 25, in_save=True, workers=2) for other in others),
            lambda: campaign.terminations(options.others),
            lambda: campaign.full_disk(options.others),
            *(lambda other=other: other.full_disk(options.others // 3) for other in others),
            lambda: campaign.flipped_bits(options.others),
            lambda: campaign.damaged_dataset(options.others),
            campaign.other_model,
            campaign.not_finite,
            *disturbances.Disturbances(campaign).all(options.others),
        ]
        combinations = combined_cuts.all_models(Path(folder) / "combinations", options.seed, options.combinations)
        of_serving = [
            *serving_faults.ServingFaults(campaign, options.requests).all(options.others),
            lambda: serving_matrix.all_combinations(Path(folder) / "serving"),
        ]
        of_lazy = lazy_product.all_cases(Path(folder) / "lazy")
        groups = {"training": faults, "combinations": combinations, "lazy": of_lazy, "serving": of_serving}
        chosen = groups.get(options.only) or [fault for group in groups.values() for fault in group]
        rows = []
        for fault in chosen:
            rows.append(fault())
            print(rows[-1], flush=True)
    print("\n| fault | tries | lost steps | outcome |\n|---|---|---|---|")
    print("\n".join(map(str, rows)))
    print(f"\nseed {options.seed}, {time.monotonic() - start:.0f} s; a checkpoint every {EVERY} steps")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        Victim.end_all()
