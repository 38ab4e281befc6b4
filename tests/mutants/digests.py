"""Digests of tests: they differ where a test that judges a mutant has changed, so that an earlier result no longer counts."""

import hashlib
from collections.abc import Collection
from functools import cache
from pathlib import Path

OWN = Path("tests/mutants")  # the campaign itself, which judges nothing


@cache
def of_helpers(tree: Path) -> str:
    """Return a digest of all files under tests/ that hold no tests: conftest.py files, modules that tests share, and their data."""
    digest = hashlib.sha256()
    for path in sorted(path for path in (tree / "tests").rglob("*") if path.is_file()):
        name = path.relative_to(tree)
        if not path.match("test_*.py") and path.suffix != ".pyc" and OWN not in name.parents:
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def of_tests(tree: Path, tests: Collection[str]) -> str:
    """Return a digest of some tests: their names, the text of their files, and all helpers.

    Args:
        tree: the repository.
        tests: the tests' names as pytest writes them, or files.
    """
    digest = hashlib.sha256(of_helpers(tree).encode())
    for name in sorted(tests):
        digest.update(f"{name}\n".encode())
    for file in sorted({name.split("::")[0] for name in tests}):
        digest.update((tree / file).read_bytes())
    return digest.hexdigest()
