"""Put a new checkpoint into a model repository as the next version, while requests flow.

  python -m serving.publish --repository REPOSITORY --model_name dlrm --checkpoint CHECKPOINT --url grpc://127.0.0.1:8001 --keep 2
  python -m serving.publish --repository REPOSITORY --model_name dlrm --model_version 3 --url grpc://127.0.0.1:8001     # an existing version

The version is exported with the flags of the newest version, its scores are proved, and then all of it becomes visible at once. Then each server
loads it: a server answers with the old version until the new one is ready, and keeps the old one if the new one cannot be loaded; the new one is then
removed. Once it is loaded, config.pbtxt names it: a server that starts serves the version named there. Without --url no server loads it, no version
is removed, and config.pbtxt stays as it is.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from serving.connection import RequestError, is_here
from serving.control import Control, Unreachable
from serving.description import CHECKPOINT
from serving.integrity import compare
from serving.live import CONFIG, announce, check_program, live, pin, stated, versions
from serving.repository import FLAGS, check_writable, remove_version
from utils.checkpoint.reading import Checkpoint
from utils.cluster import processes
from utils.commands import run_command
from utils.config.flags import Parser, add_flags
from utils.config.option import FROM_1, Bounds, Reader, build, check, check_options, option
from utils.config.options import BEST, LATEST
from utils.config.serving import FORMATS, NAME_EXPECTED, is_name
from utils.errors import UserError
from utils.priority import give_way
from utils.scratch import exclusively
from utils.signals import EndedBySignals

NAME = "serving.publish"
UNLOADING_S = 30.0
_URLS = Reader(lambda text: tuple(word for word in text.split(",") if word), "one or more addresses", "URL")


@dataclass(frozen=True)
class PublishConfig:
    """Publish."""

    repository: str | None = option(None, "folder of the model repository")
    model_name: str = option("dlrm", "name of the model")
    checkpoint: str | None = option(None, "checkpoint to export: a folder of steps, one step, or FOLDER/best")
    checkpoint_choice: str = option(BEST, "checkpoint of a folder of steps: its best where one is kept, or its latest", choices=(BEST, LATEST))
    model_version: int | None = option(
        None,
        "existing version to make live, instead of exporting a checkpoint; no version is removed",
        bounds=Bounds("a whole number of at least 1", 1),
    )
    dataset_path: str | None = option(None, "dataset whose test rows prove the export; the default is random rows")
    url: tuple[str, ...] | str | None = option(
        None,
        "address of a server of the repository, which loads the new version: grpc://HOST:PORT or http://HOST:PORT; several separated by "
        "commas, or in a flag each; without one no server loads the version, and no version is removed",
        reader=_URLS,
        repeated=True,
    )
    verify: bool = option(
        False, "read all weights of the version again and compare them with their checksums, also where a server did since they last changed"
    )
    keep: int = option(2, "number of newest versions to keep", bounds=FROM_1)

    def __post_init__(self):
        check_options(self)
        check(is_name(self.model_name), "model_name", self.model_name, NAME_EXPECTED)

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of the servers."""
        return (self.url,) if isinstance(self.url, str) else tuple(dict.fromkeys(self.url or ()))


def publish(config: PublishConfig) -> int:
    """Export a checkpoint, load it on the servers, and remove old versions; return the new version's number. Raises UserError; serving continues."""
    if config.repository is None:
        raise UserError("--repository is missing")
    if (config.checkpoint is None) == (config.model_version is None):
        raise UserError("--checkpoint is missing" if config.checkpoint is None else "--checkpoint, --model_version: drop one of them")
    model = Path(config.repository) / config.model_name
    known = versions(model)
    if not known:
        raise UserError(f"{model}: has no version yet; dlrm.py --mode export writes the first")
    if config.model_version is not None and config.model_version not in known:
        raise UserError(f"{model}: has no version {config.model_version}; expected one of {', '.join(map(str, known))}")
    servers = [Control(url) for url in config.urls]
    try:
        with exclusively(model):  # one publication at a time: each makes its own version live
            return _published(config, model, servers)
    finally:
        for server in servers:
            server.close()


def _published(config: PublishConfig, model: Path, servers: Sequence[Control]) -> int:
    for server in servers:
        if server.states(model.name) is None:
            raise UserError(f"{server.url}: has no model {model.name} in its repository; expected a server of {model.parent}")
    known, number = versions(model), config.model_version
    for folder in _formats(model):
        if folder.is_dir():
            check_writable(folder)
    if number is None:
        number = known[-1] + 1
        words = _flags(model, known)
        for folder in _formats(model):
            pin(folder, [ready for server in servers for ready in server.ready(folder.name)])
        export_version(config, words, number, gives_way=any(map(is_here, config.urls)))
    written = [folder for folder in _formats(model) if number in versions(folder)]
    before = live(model)
    try:
        for folder in written:
            check_program(folder, number)
            if config.verify and (folder / str(number) / CHECKPOINT).is_dir():
                compare(Checkpoint(folder / str(number) / CHECKPOINT))
        if servers:
            _load(servers, model, written, number)
    except UserError as error:
        if config.model_version is not None:
            raise
        for folder in written:
            remove_version(folder, number)
        served = f"; version {before[-1]} is still served" if before else ""
        raise UserError(f"{error}; version {number} was removed{served}") from None
    if servers or config.model_version is not None:
        for folder in written:
            announce(folder, number)
    _confirm(servers, model, number)
    if servers and config.model_version is None:
        _remove_old(servers, written, config.keep)
    return number


def _load(servers: Sequence[Control], model: Path, written: Sequence[Path], number: int) -> None:
    """Load a version on every server: of the model, and of those of its formats that the server serves. Raises UserError after a rollback."""
    done: list[tuple[Control, Path, list[int]]] = []
    lost: list[UserError] = []
    for server in servers:
        try:
            for folder in written:
                before = server.ready(folder.name)
                if folder != model and not before:
                    continue  # a format that this server does not serve
                done.append((server, folder, before))
                server.load(folder, [number])
        except Unreachable as error:  # the server has ended meanwhile: when it restarts, it serves what config.pbtxt names
            lost.append(error)
        except RequestError:
            for other, folder, before in reversed(done):
                _put_back(other, folder, before)
            raise
    if len(lost) == len(servers):
        raise lost[0]
    for error in lost:
        print(f"{error}; it will serve version {number} after its restart", file=sys.stderr)


def _put_back(server: Control, folder: Path, before: list[int]) -> None:
    try:
        if server.ready(folder.name) != before:
            server.load(folder, before) if before else server.unload(folder.name)
    except UserError as error:
        print(f"{error}; the versions that it served before are not all loaded again", file=sys.stderr)


def _confirm(servers: Sequence[Control], model: Path, number: int) -> None:
    """Reload the version where a backend died before the announcement, and so restarted with the version announced before. Raises UserError."""
    for server in servers:
        try:
            if number not in server.ready(model.name):
                server.load_named(model.name)
        except Unreachable:
            pass  # `_load` has reported it


def _remove_old(servers: Sequence[Control], written: Sequence[Path], keep: int) -> None:
    """Remove all versions but the newest; keep those that a server still uses or that `config.pbtxt` names."""
    deadline = time.monotonic() + UNLOADING_S
    for folder in written:
        named = stated((folder / CONFIG).read_text()) or []
        old = [number for number in versions(folder)[:-keep] if number not in named]
        while old:
            try:
                used = set().union(*(server.in_use(folder.name) for server in servers))
            except UserError as error:
                print(f"{error}; no old version was removed", file=sys.stderr)
                return
            if not used.intersection(old) or time.monotonic() > deadline:
                break
            time.sleep(0.2)  # versions that were served until now are being unloaded
        for number in old:
            if number in used:
                print(f"kept: {folder / str(number)}, as a server still uses it", file=sys.stderr)
            else:
                remove_version(folder, number)
                print(f"removed: {folder / str(number)}")


def _formats(model: Path) -> list[Path]:
    """Return the folders of a model's formats."""
    return [model, *(model.with_name(f"{model.name}_{form}") for form in FORMATS)]


def _flags(model: Path, known: Sequence[int]) -> list[str]:
    """Return the newest version's export flags. A version made by hand may have none: then the flags of an earlier version are used."""
    problem = ""
    for number in reversed(known):
        path = model / str(number) / FLAGS
        try:
            words = [str(word) for word in json.loads(path.read_text())]
        except (OSError, ValueError, TypeError) as error:
            problem = problem or f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
            continue
        if problem:
            print(f"{problem}; using the export flags of version {number}", file=sys.stderr)
        return words
    raise UserError(f"{problem}; expected the flags of an export, which --mode export writes there")


def export_version(config: PublishConfig, flags: list[str], number: int, gives_way: bool = False) -> None:
    """Export in a separate process, so that its memory is released; `gives_way`: at low priority and with one thread, as a server is beside it."""
    program = str(Path(__file__).resolve().parents[1] / "dlrm.py")
    words = ["--mode", "export", "--restore_checkpoint_path", config.checkpoint, "--export_path", config.repository, "--log_path", ""]
    words += ["--checkpoint_choice", config.checkpoint_choice]
    words += ["--model_version", str(number), *(["--dataset_path", config.dataset_path] if config.dataset_path else []), *flags]
    result = processes.run([sys.executable, program, *words], gives_way, stderr=PIPE)
    said = "dlrm.py: error: "  # errors of other programs do not count: gRPC, for one, reports some after a fork
    sys.stderr.write("".join(line for line in result.stderr.splitlines(keepends=True) if said not in line))
    if result.returncode:
        cause = next((line.partition(said)[2] for line in result.stderr.splitlines() if said in line), f"exit code {result.returncode}")
        raise UserError(f"{cause}; the repository is unchanged")


def main() -> None:
    """Run the command line: publish a version."""
    parser = Parser(prog=NAME, description=__doc__)
    add_flags(parser, [PublishConfig])
    config = build(PublishConfig, vars(parser.parse_strictly(sys.argv[1:])))
    if any(map(is_here, config.urls)):
        give_way()
    number = publish(config)
    if config.urls:
        print(f"{config.model_name}: version {number} is served")
    elif config.model_version is not None:
        print(f"{config.model_name}: version {number} is live: a server serves it once it starts or loads the model")
    else:
        print(f"{config.model_name}: version {number} is written")


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
