"""URLs of files and folders in object stores, such as `s3://bucket/day.csv`."""

import os
import re

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*://").match
_LOCAL = re.compile(r"(?:file|local)://(?=/)").match
_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])").match  # a URL after `pathlib` has dropped a slash
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@")


def is_url(text: str) -> bool:
    """Return whether a text is the URL of something in a store, and not the name of an existing local file that looks like one."""
    return _URL(text) is not None and not os.path.lexists(text)


def local_of(text: str) -> str:
    """Return the path of a `file://` or `local://` URL; any other text unchanged."""
    found = _LOCAL(text)
    return text[found.end() :] if found else text


def url_of(path: str) -> str | None:
    """Restore the URL from which `pathlib` made a path; None where the path was no URL."""
    found = _PATH(path)
    return f"{found[1]}://{path[found.end() :]}" if found and not os.path.lexists(path.partition("/")[0]) else None


def without_secrets(text: str) -> str:
    """Remove the passwords of URLs from a text."""
    return _SECRETS.sub("", text)


def shown(url: str) -> str:
    """Remove passwords and signatures from a URL, for messages and metadata."""
    url = without_secrets(url)
    return url.partition("?")[0] if url.startswith("http") and "=" in url.partition("?")[2] else url
