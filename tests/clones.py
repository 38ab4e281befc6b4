"""Copies of the program in other folders, as other hosts have them."""

import shutil
from pathlib import Path

from utils.cluster import program

ROOT = Path(__file__).parents[1]


def clone(folder: Path) -> Path:
    """Copy the program to another folder: the files get new modification times, and compiled files are left out."""
    for name in (*program.ENTRY, *program.ROOMS):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(path, folder / name)
    return folder


def double_the_learning_rate(folder: Path) -> None:
    """Change a copy's code, so that its learning rate is doubled."""
    path = folder / "training/schedule.py"
    text = path.read_text()
    changed = text.replace("return self.base *", "return 2 * self.base *")
    assert changed != text
    path.write_text(changed)
