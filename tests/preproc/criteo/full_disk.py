"""preproc.criteo, preproc.table and transcribe on file systems too small for them, in a process of its own because it mounts; results as JSON.

unshare -rm python tests/preproc/criteo/full_disk.py FOLDER
"""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from dataloading import transcribe
from preproc.criteo import command as criteo
from preproc.table import command as table
from utils.commands import run_command

ROOT = Path(__file__).parents[3]
SIZES = {
    criteo: (10, 150, 360, 700, 1200, 1400),
    transcribe: (12, 100, 440),
    table: (20, 260, 300, 360, 400, 430, 460, 490, 520, 550),
}  # KiB: each kind of file in turn


def main(folder: Path) -> None:
    """Run each command on disks of growing size; print the results."""
    disk = folder / "disk"
    disk.mkdir()
    (folder / "day_0").write_text("".join("1" + f"\t{i}" * 13 + f"\t{i:x}" * 26 + "\n" for i in range(4000)))
    (folder / "day_1").write_text("1" + "\t5" * 13 + "\tab" * 26 + "\n")
    logs = [
        "--train",
        folder / "day_0",
        "--test",
        folder / "day_1",
        "--dst",
        disk / "new" / "out",
        "--frequency_threshold",
        0,
        "--block_bytes",
        60_000,
    ]
    drawn = ["--src_dataset_type", "synthetic", "--src_dataset_path", ROOT, "--dst_dataset_path", disk / "new" / "out"]
    drawn += ["--max_batches_train", 3, "--max_batches_test", 1, "--src_batch_size", 1000]
    rows = "".join(f"{i:x},{i * 7919 % 4000},{i}|{i % 99},{i % 2}\n" for i in range(4000))
    (folder / "rows.csv").write_text(f"a,b,c,y\n{rows}")
    columns = ["--label", "y", "--categorical", "a,b", "--lists", "c", "--keep", "a", "--test_fraction", 0.1, "--block_bytes", 20_000]
    tabled = ["--train", folder / "rows.csv", "--dst", disk / "new" / "out", *columns]
    found = []
    for command, arguments in ((criteo, logs), (transcribe, drawn), (table, tabled)):
        for size in SIZES[command]:
            if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk], check=False).returncode:
                sys.exit(77)
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                code = run_command(lambda: command.main(list(map(str, arguments))), command.NAME)  # noqa: B023
            found.append({"code": code, "said": said.getvalue(), "left": [str(path) for path in disk.rglob("*")]})
            subprocess.run(["umount", disk], check=True)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
