"""Files, and all those of a folder."""

from pathlib import Path


def tree(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """Return the content of every file, hidden ones included, by its path in the folder: the data that `diff -rq` compares."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob(pattern)) if path.is_file()}


def write(path: Path, content: str | bytes) -> Path:
    """Write a file with this content; return its path."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
