"""Names of files and folders in object stores: `s3://bucket/day.csv`."""

import os
import re

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*://").match
_LOCAL = re.compile(r"(?:file|local)://(?=/)").match
_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])").match  # what `pathlib` makes of one
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@")


def is_url(text: str) -> bool:
    """Whether a text names something in a store; a local path that looks like it is local."""
    return _URL(text) is not None and not os.path.lexists(text)


def local_of(text: str) -> str:
    """The path of a `file://` URL; any other text as it is."""
    found = _LOCAL(text)
    return text[found.end() :] if found else text


def url_of(path: str) -> str | None:
    """The URL that a path once was; None where it was none."""
    found = _PATH(path)
    return f"{found[1]}://{path[found.end() :]}" if found and not os.path.lexists(path.partition("/")[0]) else None


def without_secrets(text: str) -> str:
    """A text without the passwords of the URLs in it."""
    return _SECRETS.sub("", text)


def shown(url: str) -> str:
    """A URL without passwords and signatures, which have no place in messages and metadata."""
    url = without_secrets(url)
    return url.partition("?")[0] if url.startswith("http") and "=" in url.partition("?")[2] else url
