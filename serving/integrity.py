"""Comparison of a version's weights with their checksums, before it is served: requests read mapped tables, whose checksums nothing compares.

A stamp in the cache spares a version that was compared since its files last changed, so that a restart takes no longer.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from utils.cache import cache_folder
from utils.checkpoint import manifest
from utils.checkpoint.reading import Checkpoint

_STAMPS, _DONE = "compared", "done.json"
_SAID_BYTES = 1 << 30  # reading less takes no time worth a line


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compare_once(folder: Path, say: Callable[[str], None] = _tell) -> None:
    """Compare the weights of a version with their checksums, unless it was done since a file last changed. Of several processes one does it.

    Args:
        folder: the checkpoint of the version.
        say: called with a line before much is read, and where no stamp can be kept.

    Raises:
        CheckpointError: a file is damaged.
    """
    checkpoint = Checkpoint(folder)
    facts = _facts(checkpoint)
    try:
        stamp = cache_folder() / _STAMPS / hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        if (stamp / _DONE).is_file():
            return
        from utils.scratch import exclusively  # this module imports only what a restart needs

        stamp.mkdir(parents=True, exist_ok=True)
        with exclusively(stamp):
            if not (stamp / _DONE).is_file():
                compare(checkpoint, say)
                if _facts(Checkpoint(folder)) == facts:  # nothing has changed meanwhile
                    (stamp / _DONE).write_text(json.dumps({"folder": facts[0]}))
                    _remove_others(stamp, facts[0])
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        say(
            f"{getattr(error, 'filename', None) or 'the cache'}: {getattr(error, 'strerror', None) or error}; set DLRM_CACHE_DIR to a writable "
            "folder: without one, every start compares all weights with their checksums"
        )
        compare(checkpoint, say)


def compare(checkpoint: Checkpoint, say: Callable[[str], None] = _tell) -> None:
    """Read all weights of a version and compare them with their checksums, at low priority. Raises CheckpointError where a file is damaged."""
    from serving.weights import check_contents, stored_bytes
    from utils.priority import giving_way

    if (size := stored_bytes(checkpoint)) > _SAID_BYTES:
        say(f"{checkpoint.folder}: comparing {size / _SAID_BYTES:.1f} GiB with their checksums")
    giving_way(lambda: check_contents(checkpoint))


def _facts(checkpoint: Checkpoint) -> list:
    """Return what changes whenever a file of the checkpoint is replaced or written."""
    folder = checkpoint.folder.resolve()
    found: list = [str(folder), manifest.checksum(checkpoint.manifest)]
    for name in [manifest.NAME, *sorted(checkpoint.manifest["files"])]:
        about = (folder / name).stat()
        found.append([name, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns])
    return found


def _remove_others(stamp: Path, folder: str) -> None:
    """Remove the stamps of this folder before its files changed, and those of folders that are gone."""
    for other in stamp.parent.iterdir():
        try:
            of = json.loads((other / _DONE).read_text())["folder"]
            if other != stamp and (of == folder or not Path(of).is_dir()):
                (other / _DONE).unlink()
                other.rmdir()
        except (OSError, ValueError, KeyError, TypeError):
            continue  # another process makes or removes it
