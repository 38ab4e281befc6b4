"""The command line of `scripts/elastic`, and the flags with which a restart resumes."""

import argparse
import math
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from run.elastic.allotment import smallest
from run.elastic.discovery import parse_hosts
from run.elastic.same_code import ssh_flags
from utils.checkpoint.folder import complete_steps
from utils.config.config import Config
from utils.config.flags import Parser
from utils.config.options import TRAIN, TrainingConfig
from utils.dialects.command_line import parse
from utils.dialects.programs import PROGRAMS, is_program
from utils.errors import UserError
from utils.flag_names import spoken

PASSED_ON = ("--mpi-args", "--ssh-port", "--ssh-identity-file", "--start-timeout", "--network-interfaces")  # passed on to horovodrun

_SAVING = "--checkpoint_every_steps, --checkpoint_every_minutes or --checkpoint_every_epoch"
_NAMES = f"{', '.join([*PROGRAMS][:-1])} or {[*PROGRAMS][-1]}"
EPILOG = """\
./scripts/elastic --min-np 1 --max-np 4 --host-discovery-script ./hosts.sh --mpi-args=--oversubscribe -- \\
    numactl --interleave=all -- python -u dlrm.py --dataset_path DATASET --save_checkpoint_path CHECKPOINT --checkpoint_every_steps 500
"""


def say(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"elastic: {text}\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class Request:
    """The parsed command line."""

    command: list[str]  # command that each worker runs
    training: TrainingConfig  # the command's options for length and checkpoints
    batch: int  # the workers must divide this: the greatest common divisor of all batch sizes
    launcher: list[str]  # arguments for horovodrun
    ssh: list[str]  # ssh flags with which it reaches the hosts
    script: str | None  # shell command that prints the hosts
    hosts: dict[str, int]  # fixed hosts, where there is no script
    first: int  # minimum number of workers at the first start
    minimum: int
    maximum: int | None
    reset_limit: int
    timeout_s: float

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "Request":
        """Parse and check the command line, before anything is started. Raises UserError."""
        words = list(arguments)
        middle = words.index("--") if "--" in words else len(words)
        options = vars(_parser().parse_strictly(words[:middle]))
        command = words[middle + 1 :]
        config = _parse_command(command)
        if bool(options["host_discovery_script"]) == bool(options["hosts"]):
            raise UserError("expected either --host-discovery-script (hosts that come and go) or --hosts (a fixed list)")
        minimum, maximum, batch = options["min_np"] or options["num_proc"] or 1, options["max_np"], _common_batch(config)
        first = max(options["num_proc"] or 1, minimum)
        hosts = parse_hosts(options["hosts"] or "", "--hosts")
        for least in (minimum, first):
            _check_workers(least, maximum, batch, None if options["hosts"] is None else sum(hosts.values()))
        training = config.training
        if not (training.checkpoint_every_steps or training.checkpoint_every_minutes or training.checkpoint_every_epoch):
            say(f"warning: without {_SAVING}, a lost worker costs the whole run")
        ssh = ssh_flags(options["ssh_port"], options["ssh_identity_file"])
        launcher = [f"{name}={options[_key(name)]}" for name in PASSED_ON if options[_key(name)] is not None]
        limits = options["reset_limit"], options["timeout"]
        return cls(command, training, batch, launcher, ssh, options["host_discovery_script"], hosts, first, minimum, maximum, *limits)


def _check_workers(least: int, maximum: int | None, batch: int, slots: int | None) -> None:
    """Raise UserError where there can never be enough workers: some number of them must divide the batch, and a fixed list must have the slots."""
    needed = smallest(least, batch)
    if needed is None or needed > (maximum or batch):
        raise UserError(f"no number of workers from {least} to {maximum or batch} divides the batch sizes evenly; expected a divisor of {batch}")
    if slots is not None and needed > slots:
        raise UserError(f"--hosts: found slots for {slots}, expected at least {needed}, one per worker")


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or len(text) > 9 or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return number


def _parser() -> Parser:
    usage = f"scripts/elastic [flags] -- COMMAND, which runs {_NAMES} in each worker"
    description = "Train on the available hosts; when a host is lost, resume from the newest checkpoint on the remaining hosts."
    parser = Parser(prog="elastic", usage=usage, description=description, epilog=EPILOG)
    parser.add_argument("--min-np", "--min-num-proc", type=_at_least(1), metavar="N", help="minimum number of workers (default: --num-proc or 1)")
    parser.add_argument("-np", "--num-proc", type=_at_least(1), metavar="N", help="minimum number of workers at the first start (default: --min-np)")
    parser.add_argument("--max-np", "--max-num-proc", type=_at_least(1), metavar="N", help="maximum number of workers (default: one per slot)")
    parser.add_argument("--host-discovery-script", metavar="COMMAND", help="command that prints the available hosts, one host:slots or host a line")
    parser.add_argument("-H", "--hosts", metavar="HOST:SLOTS,…", help="fixed list of hosts, instead of a script")
    help = "maximum number of restarts in a row without a new checkpoint (default: 10)"
    parser.add_argument("--reset-limit", type=_at_least(0), default=10, metavar="N", help=help)
    help = "seconds to wait for enough hosts (default: 600)"
    parser.add_argument("--timeout", "--elastic-timeout", type=_at_least(0), default=600, metavar="S", help=help)
    for name in PASSED_ON:
        parser.add_argument(name, help="passed on to horovodrun")
    return parser


def _parse_command(command: Sequence[str]) -> Config:
    """Parse the configuration of the workers' command."""
    place = next((i for i, word in enumerate(command) if is_program(word)), None)
    if place is None:
        raise UserError(f"expected -- and a command that runs {_NAMES}: -- python -u dlrm.py --dataset_path DATASET …")
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]}: no such program")
    name = Path(command[place]).name
    config = parse(command[place + 1 :], "", name, *PROGRAMS[name])
    if config.run.mode != TRAIN:
        raise UserError(spoken(f"--mode {config.run.mode}: expected train, the only mode that can resume from a checkpoint", config.names))
    if config.training.save_checkpoint_path is None:
        raise UserError("--save_checkpoint_path is missing: when a worker is lost, training resumes from a checkpoint")
    return config


def _common_batch(config: Config) -> int:
    """Return the number that the workers must divide: the divisor common to all batch sizes that the program does not round up by itself."""
    sizes = [config.data.batch_size, *config.training.inference_benchmark_batch_sizes]
    return math.gcd(*sizes, *([config.data.valid_batch_size] if "valid_batch_size" in config.given else []))


def resume_flags(options: TrainingConfig, saved: bool) -> list[str]:
    """Return flags to append to the user's own, so that a start resumes from the newest checkpoint once there is one.

    What the command restores (`--restore_checkpoint_path`, also with `--resume weights` or `--allow_growth`) is where training begins,
    so it applies until the run's own folder has a checkpoint.
    """
    restores = options.restore_checkpoint_path is not None
    if restores and not saved:
        return []
    flags = ["--restore_checkpoint_path", options.save_checkpoint_path] if restores else []  # the last occurrence of a flag counts
    auto = [] if options.resume == "auto" else ["--resume", "auto"]  # Wide & Deep's --use_checkpoint already implies it
    return [*flags, *(["--noallow_growth"] if options.allow_growth else []), *auto]


def saved_step(path: str) -> int | None:
    """Return the step of the newest complete checkpoint in a folder; None where there is none."""
    steps = complete_steps(Path(path))
    return int(re.search(r"\d+", steps[0].name)[0]) if steps else None
