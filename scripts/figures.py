"""Run the commands of the documents and compare their output with the documented output. See `scripts/figures`."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
REAL = re.compile(r"(?<![\w/])day_[01]\.tsv\b")  # files from CRITEO_SAMPLE_DIR
NUMBER = re.compile(r"\d+(?::\d\d){2}|\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
RATE = re.compile(r"^(?:\d+:\d\d:\d\d| ?(?:samples/s|rows/s|ms|s\b|MB/s))")  # units of numbers that differ from machine to machine
HERE = re.compile(r"<<'(\w+)'")  # a here-document: the command ends at its delimiter; other commands continue while lines end with a backslash
LAST_DIGITS = 2e-3  # relative tolerance, because processors round differently


class Block(NamedTuple):
    """A console block: start and stop of its lines in the document, and its commands with their output."""

    first: int
    last: int
    steps: list[tuple[str, list[str]]]


def blocks(lines: list[str]) -> Iterator[Block]:
    """Yield the console blocks of a document."""
    start = None
    for number, line in enumerate(lines):
        if line.strip() == "```console":
            start = number + 1
        elif start is not None and line.startswith("```"):
            yield Block(start, number, list(_steps(lines[start:number])))
            start = None


def _steps(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    command, output, until = "", [], None
    for line in lines:
        if until is not None:
            command += "\n" + line
            until = None if line == until or (until == "" and not line.endswith("\\")) else until
        elif line.startswith("$ "):
            if command:
                yield command, output
            command, output = line[2:], []
            here = HERE.search(line)
            until = here[1] if here else "" if line.endswith("\\") else None
        else:
            output.append(line)
    if command:
        yield command, output


def numbers(line: str) -> list[tuple[str, bool]]:
    """Return the numbers of a line, each with a flag for rates and times."""
    return [(found[0], ":" in found[0] or bool(RATE.match(line[found.end() :]))) for found in NUMBER.finditer(line)]


def compared(expected: list[str], printed: list[str]) -> Iterator[str]:
    """Yield a line for each difference between expected and printed output."""
    if [NUMBER.sub("#", line) for line in expected] != [NUMBER.sub("#", line) for line in printed]:
        yield "other lines:"
        yield from (f"    - {line}" for line in expected if line not in printed)
        yield from (f"    + {line}" for line in printed if line not in expected)
        return
    for before, now in zip(expected, printed, strict=True):
        for (old, rate), (new, _) in zip(numbers(before), numbers(now), strict=True):
            if old == new or rate:
                continue
            a, b = (float(text.replace(",", "")) for text in (old, new))
            kind = "last digits" if abs(a - b) <= LAST_DIGITS * max(abs(a), abs(b)) else "changed"
            yield f"{kind}: {old} -> {new} in: {now}"


def main() -> int:
    """Run the documents' commands, and return 1 if a figure changed by more than its last digits or a command failed."""
    parser = argparse.ArgumentParser(prog="scripts/figures", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the new output into the documents")
    parser.add_argument("documents", nargs="*", metavar="FILE.md", help="documents to run (default: README.md and docs/*.md)")
    flags = parser.parse_args()
    documents = [Path(name) for name in flags.documents] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    failed = False
    for document in documents:
        failed |= not run(document, flags.update)
    return int(failed)


def run(document: Path, update: bool) -> bool:
    """Run the commands of one document in a copy of the sources, and return whether its figures are unchanged but for last digits."""
    lines, stands = document.read_text().splitlines(), True
    if not (found := list(blocks(lines))):
        return True
    replaced: list[tuple[Block, list[str]]] = []
    with tempfile.TemporaryDirectory() as scratch:
        _copy(Path(scratch))
        sample = os.environ.get("CRITEO_SAMPLE_DIR")
        for block in found:
            if any(REAL.search(command) for command, _ in block.steps):
                if not sample:
                    print(f"{document.name}:{block.first}: skipped: CRITEO_SAMPLE_DIR is not set", flush=True)
                    continue
                for name in ("day_0.tsv", "day_1.tsv"):
                    shutil.copyfile(Path(sample) / name, Path(scratch) / name)
            written, ended_well = [], True
            for command, expected in block.steps:
                ended = subprocess.run(["bash", "-c", command], cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                printed = ended.stdout.splitlines()
                written += [f"$ {command}", *printed]
                moved = list(compared(expected, printed)) + ([f"ended with {ended.returncode}"] if ended.returncode else [])
                ended_well &= not ended.returncode
                stands &= all(line.startswith("last digits") for line in moved)
                print(f"{document.name}:{block.first}: {command.splitlines()[0]}: {'unchanged' if not moved else ''}", flush=True)
                for line in moved:
                    print(f"    {line}", flush=True)
            if ended_well:
                replaced.append((block, "\n".join(written).splitlines()))
        if update:
            for block, block_lines in reversed(replaced):
                lines[block.first : block.last] = block_lines
            document.write_text("\n".join(lines) + "\n")
    return stands


def _copy(scratch: Path) -> None:
    """Copy the working tree's sources, without files that git ignores."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, scratch / name)


if __name__ == "__main__":
    sys.exit(main())
