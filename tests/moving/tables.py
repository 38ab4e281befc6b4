"""The tables of docs/moving.md: a row is a command of another system, the command here, and what differs."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "moving.md"
AS_WRITTEN = "as written"


class Row(NamedTuple):
    system: str  # heading of the table
    there: str
    here: str  # a command, AS_WRITTEN, or words about a replacement
    differs: str

    @property
    def command(self) -> str:
        """The command to type here."""
        return self.there if self.here == AS_WRITTEN else self.here


def rows() -> list[Row]:
    """Return the rows of all tables whose head is `there | here | what differs`."""
    found, system, inside = [], "", False
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            system = line.removeprefix("## ")
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[:2] == ["there", "here"]:
            inside = True
        elif inside and not re.fullmatch(r"[-|: ]+", line):
            there, here, differs = (cell.strip("|").strip() for cell in cells)
            found.append(Row(system, there.strip("`"), here.strip("`") if here.startswith("`") and here.count("`") == 2 else here, differs))
    return found
