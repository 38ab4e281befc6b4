"""Put a new checkpoint into a model repository as the next version, while requests flow.

  python -m serving.publish --repository REPOSITORY --model_name dlrm --checkpoint CHECKPOINT --url grpc://127.0.0.1:8001 --keep 2

The version is exported with the flags of the one before, proved, and visible at once. Then the server is told to load it: it answers by the old one
until the new one is ready, and goes on with the old one where that fails; the new version is then taken away again. Without --url nothing is told.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from serving import children
from serving.connection import Connection, RequestError
from serving.repository import FLAGS, remove_version, versions
from utils.errors import UserError, run_command
from utils.flags import Parser, add_flags, build, check, check_types, option
from utils.interrupt import EndedBySignals
from utils.options import BEST, LATEST
from utils.serving_options import FORMATS

NAME = "serving.publish"


@dataclass(frozen=True)
class PublishConfig:
    """Publish."""

    repository: str | None = option(None, "folder of the model repository")
    model_name: str = option("dlrm", "name of the model")
    checkpoint: str | None = option(None, "the checkpoint: a folder of steps, one step, or FOLDER/best")
    checkpoint_choice: str = option(BEST, "what a folder of steps stands for: its best where one is kept, or its latest", choices=(BEST, LATEST))
    dataset_path: str | None = option(None, "dataset whose test rows prove the export; the default is drawn rows")
    url: str | None = option(None, "of the server, which loads the new version: grpc://HOST:PORT or http://HOST:PORT; the default is to tell nobody")
    keep: int = option(2, "newest versions to keep")

    def __post_init__(self):
        check_types(self)
        check(self.keep >= 1, "keep", self.keep, "at least 1")


def publish(config: PublishConfig) -> int:
    """Export, load, and remove old versions; returns the new one's number. Raises UserError; what was served is served on."""
    for name in ("repository", "checkpoint"):
        if getattr(config, name) is None:
            raise UserError(f"--{name} is missing")
    model = Path(config.repository) / config.model_name
    known = versions(model)
    if not known:
        raise UserError(f"{model}: has no version yet; dlrm.py --mode export writes the first")
    connection = Connection(config.url, config.model_name) if config.url else None
    number = known[-1] + 1
    _export(config, _flags(model / str(known[-1])), number)
    written = [folder for folder in _formats(model) if number in versions(folder)]
    if connection is not None:
        try:
            connection.load()
        except RequestError as error:
            for folder in written:
                remove_version(folder, number)
            connection.load()  # forget it
            raise UserError(f"{error}; version {number} is taken away, version {known[-1]} is served on") from None
        finally:
            connection.close()
    for folder in written:
        for old in versions(folder)[: -config.keep]:
            remove_version(folder, old)
            print(f"removed: {folder / str(old)}")
    return number


def _formats(model: Path) -> list[Path]:
    """The folders of a model's formats."""
    return [model, *(model.with_name(f"{model.name}_{form}") for form in FORMATS)]


def _flags(version: Path) -> list[str]:
    """Those that a version was exported with."""
    path = version / FLAGS
    try:
        return [str(word) for word in json.loads(path.read_text())]
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); it says how the version was exported, and --mode export writes it") from None


def _export(config: PublishConfig, flags: list[str], number: int) -> None:
    """In a process of its own, whose memory is given back."""
    program = str(Path(__file__).resolve().parents[1] / "dlrm.py")
    words = ["--mode", "export", "--restore_checkpoint_path", config.checkpoint, "--export_path", config.repository, "--log_path", ""]
    words += ["--checkpoint_choice", config.checkpoint_choice]
    words += ["--model_version", str(number), *(["--dataset_path", config.dataset_path] if config.dataset_path else []), *flags]
    result = children.run([sys.executable, program, *words], stderr=PIPE)
    sys.stderr.write("".join(line for line in result.stderr.splitlines(keepends=True) if "error:" not in line))
    if result.returncode:
        cause = next((line.partition("error: ")[2] for line in result.stderr.splitlines() if "error: " in line), f"exit code {result.returncode}")
        raise UserError(f"{cause}; the repository is as it was")


def main() -> None:
    """Publish."""
    parser = Parser(prog=NAME, description=__doc__)
    add_flags(parser, [PublishConfig])
    config = build(PublishConfig, vars(parser.parse_strictly(sys.argv[1:])))
    number = publish(config)
    print(f"{config.model_name}: version {number} is {'served' if config.url else 'there'}")


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
