"""The files of a table, and the format of each."""

import csv
import glob
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dataloading.features import DatasetError
from preproc.reading.compressed import read_chunks
from preproc.reading.stores import Source, stored_files
from utils import csv_rows
from utils.csv_rows import DOUBLE
from utils.paths import check_utf8
from utils.urls import is_url

CSV, JSON_LINES, PARQUET, ARROW = FORMATS = ("csv", "jsonl", "parquet", "arrow")
_SEPARATORS = (",", "\t", ";", "|", "::")  # in order of preference
_SAMPLE_BYTES, _SAMPLE_LINES = 1 << 20, 20
_BOM = b"\xef\xbb\xbf"
_OTHERS = {  # magic numbers of formats that are not read and would otherwise be parsed as text
    rb"PK\x03\x04": "a zip archive",
    rb"BZh[1-9]1AY&": "compressed by bzip2",
    rb"\xfd7zXZ\x00": "compressed by xz",
    rb"\xff\xfe|\xfe\xff": "text in UTF-16",
    rb"Obj\x01": "an Avro file",
}


@dataclass(frozen=True)
class Form:
    """The format of a file. `separator`, `quote` and `names` apply to CSV only.

    `quote` is the style of quotes of `utils.csv_rows`, None where quotes are ordinary text; `names` are those of a file without a header.
    """

    kind: str
    separator: str = ","
    quote: str | None = DOUBLE
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class FormFlags:
    """The format of all files as set by the user. None: inferred from each file. `names` are the columns of those files that have no header."""

    kind: str | None = None
    separator: str | None = None
    quote: str | None = DOUBLE
    names: tuple[str, ...] | None = None


def files_of(given: Iterable[str]) -> list[Source]:
    """Return files, all files of folders, and the matches of globs, local or by URL, in the order given.

    The files of a folder or a glob are sorted by name.

    Raises:
        DatasetError: a path does not exist, matches nothing, or is given twice.
    """
    found: list[Source] = []
    for text in given:
        path = Path(text)
        if is_url(text):
            found += stored_files(text)
        elif path.is_dir():
            inside = sorted(entry for entry in _inside(path) if entry.is_file() and not _hidden(entry.relative_to(path)))
            if not inside:
                raise DatasetError(f"{path}: a folder without files; expected the files of a table")
            found += inside
        elif path.is_file():
            found.append(path)
        elif glob.has_magic(text):
            found += _matches(text)
        else:
            raise DatasetError(f"{path}: {'not a file' if path.exists() else 'no such file'}; expected a file, a folder or a glob")
    seen: set[str] = set()
    for path in found:
        if isinstance(path, Path):
            check_utf8(path)
        place = str(path.resolve()) if isinstance(path, Path) else path.identity
        if place in seen:
            raise DatasetError(f"{path}: is given twice; give it once")
        seen.add(place)
    return found


def _inside(folder: Path) -> list[Path]:
    """Return everything in a folder and below it. Raises OSError where an entry cannot be read; `rglob` would skip it silently."""

    def refuse(error: OSError) -> None:
        raise error

    return [Path(place) / name for place, _, names in os.walk(folder, onerror=refuse) for name in names]


def _matches(text: str) -> list[Path]:
    """Return the files that a glob matches."""
    found = sorted(Path(name) for name in glob.glob(text, recursive=True))
    found = [path for path in found if not (path.is_dir() and "**" in text)]  # `**` also matches every folder on the way
    if not found:
        raise DatasetError(f"{text}: matches no file")
    for path in found:
        if not path.is_file():
            what = f"a folder; name it, or match its files: {text}/*" if path.is_dir() else "not a file; expected globs that match files only"
            raise DatasetError(f"{path}: is matched by {text} and is {what}")
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)  # _SUCCESS and .crc files of Spark


def form_of(path: Source, flags: FormFlags) -> Form:
    """Return the format of a file: from the flags, or else inferred from its first bytes and lines.

    Raises:
        DatasetError: the file is empty, or is in a format that is not supported.
    """
    magic = _first_bytes(path, 8)
    kind = flags.kind or (PARQUET if magic.startswith(b"PAR1") else ARROW if magic.startswith((b"ARROW1", b"\xff\xff\xff\xff")) else None)
    if kind in (PARQUET, ARROW):
        return Form(kind)
    for first, what in _OTHERS.items():
        if kind is None and re.match(first, magic):
            raise DatasetError(f"{path}: is {what}; expected text in UTF-8, Parquet or Arrow, plain or compressed by gzip or zstd")
    sample = _sample(path)
    if kind is None and sample.split(maxsplit=1)[0][:1] == b"[" and sample.replace(b" ", b"")[1:3].strip()[:1] in (b"{", b"["):
        raise DatasetError(f"{path}: is one JSON array; expected JSON lines, one object a line (jq -c '.[]' converts it)")
    if kind == JSON_LINES or (kind is None and sample.lstrip()[:1] == b"{"):
        return Form(JSON_LINES)
    lines = [line.decode(errors="replace").rstrip("\r") for line in sample.split(b"\n")[:_SAMPLE_LINES]]
    separator = flags.separator or _separator(lines, flags)
    quote = flags.quote if len(separator) == 1 else None
    found = Form(CSV, separator, quote)
    return found if flags.names is None or _is_header(lines[0], found, flags.names) else replace(found, names=flags.names)


def _is_header(line: str, form: Form, names: Sequence[str]) -> bool:
    """Return whether a first line names columns: all of the given names, or no others."""
    found = [name.strip() for name in fields_of(line, form)]
    return len(set(found)) == len(found) and (set(found) >= set(names) or set(found) <= set(names))


def header_of(path: Source, form: Form) -> list[str]:
    """Return the names in a CSV file's first line, or the given names. Raises DatasetError where a name is duplicate or missing."""
    try:
        first = _sample(path).split(b"\n")[0].decode().rstrip("\r")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path}, line 1: byte {error.start + 1}, {error.object[error.start]:#04x}, is not UTF-8; expected text in UTF-8"
        ) from None
    if "\r" in first and '"' not in first:
        raise DatasetError(f"{path}: its lines end in CR alone; expected LF or CRLF (tr '\\r' '\\n' converts them)")
    found = [name.strip() for name in fields_of(first, form)]
    names = list(form.names or found)
    for i, name in enumerate(names):
        if not name:
            raise DatasetError(f"{path}, line 1: column {i + 1} has no name; expected a header, or --columns A,B,… for files without one")
        if names.index(name) != i:
            raise DatasetError(f"{path}, line 1: column {name} is named twice; expected unique names, or --columns A,B,… for files without a header")
    return names


def _first_bytes(path: Source, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _sample(path: Source) -> bytes:
    """Return the first whole lines, without a byte order mark."""
    text = b""
    for chunk in itertools.islice(read_chunks(path, _SAMPLE_BYTES), 64):
        text += chunk
        if len(text) >= _SAMPLE_BYTES:
            break
    cut = text.rfind(b"\n") + 1 if len(text) >= _SAMPLE_BYTES else 0
    lines = (text[:cut] if cut else text).removeprefix(_BOM).rstrip(b"\r\n")
    if not lines.strip():
        raise DatasetError(f"{path}: holds no lines; expected a table")
    return lines


def _separator(lines: Sequence[str], flags: FormFlags) -> str:
    """Return the separator that splits every line into the same number of values.

    Of several such separators, the one that gives as many values as there are given names wins, or else the one that gives most.
    """
    best, most = ",", 1
    for separator in _SEPARATORS:
        counts = {len(_fields(line, separator, flags.quote if len(separator) == 1 else None)) for line in lines}
        count = counts.pop()
        if counts:
            continue
        if flags.names and count == len(flags.names):
            return separator
        if count > most or (count == most and count > 1 and separator == "::"):
            best, most = separator, count
    if most > 1:
        return best
    # No separator splits all lines alike, perhaps because one line is bad: the one that splits the first line into most values.
    return max(_SEPARATORS, key=lambda separator: len(_fields(lines[0], separator, flags.quote if len(separator) == 1 else None)))


def _fields(line: str, separator: str, quote: str | None) -> list[str]:
    """Return the values of a line, also of one whose quotes are wrong."""
    if len(separator) > 1 or quote is None:
        return line.split(separator)
    try:
        return csv_rows.fields(line, separator, quote) or [""]
    except csv.Error:
        pass
    try:
        return csv_rows.fields(line, separator, quote, strict=False)
    except csv.Error:
        return line.split(separator)


def fields_of(line: str, form: Form) -> list[str]:
    """Return the values of a line."""
    return _fields(line, form.separator, form.quote)
