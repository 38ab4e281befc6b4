"""The configuration of a run, from a command line with the flags of this application or of one that it replaces, and from a file."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from utils.config.config import GROUPS, Config
from utils.config.flags import Parser, add_flags, read_yaml
from utils.config.option import build
from utils.config.options import EXPORT, PLAN
from utils.dialects.model_config import expanded
from utils.dialects.pytorch_flags import KNOWN, LEGACY, translated
from utils.errors import AgreedError, UserError
from utils.flag_names import AS_HERE, Translated, spoken

Translation = Callable[[Sequence[str]], Translated]


class UsageError(AgreedError):
    """An invalid command line. All workers have the same one, so all raise this error."""


def parse(
    arguments: Sequence[str],
    description: str,
    program: str = "dlrm.py",
    defaults: Mapping[str, Any] = MappingProxyType({}),
    translate: Translation | None = None,
) -> Config:
    """Parse a command line into a configuration.

    Args:
        arguments: the words of the command line.
        description: the first text of `--help`.
        program: the program's name.
        defaults: the program's own defaults of flags, where they differ.
        translate: turns the program's command line into this application's flags first.

    Raises:
        UsageError: a flag is unknown, a value is invalid, or options contradict each other.
    """
    names = AS_HERE
    try:
        words, lines, names = translate(arguments) if translate else Translated(list(arguments), [])
        config = _parse(words, description, program, defaults)
        return replace(config, legacy=(*lines, *config.legacy), names=names)
    except UserError as error:
        raise UsageError(spoken(str(error), names)) from None


def _parse(arguments: Sequence[str], description: str, program: str, defaults: Mapping[str, Any]) -> Config:
    parser = Parser(prog=program, description=description)
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags, a mapping of names to values; flags on the command line win")
    add_flags(parser, GROUPS, defaults)
    legacy = parser.add_argument_group("Accepted for NVIDIA's commands, without effect")
    for name, reason in LEGACY.items():
        legacy.add_argument(f"--{name}", nargs="?", default=None, const="true", metavar="VALUE", help=reason)
        legacy.add_argument(f"--no{name}", dest=name, action="store_const", const="false", help=argparse.SUPPRESS)
    known = {name.removeprefix("--") for name in parser.flags()} | KNOWN
    arguments, of_file = expanded(arguments, known)
    arguments, notes = translated(arguments)
    namespace = vars(parser.parse_strictly(arguments))
    legacy_lines = of_file + notes + [f"--{name} has no effect: {reason}" for name, reason in LEGACY.items() if namespace.pop(name) is not None]
    file = namespace.pop("config", None)
    values = (read_yaml(file, GROUPS) if file is not None else {}) | namespace
    groups = [build(group, {**defaults, **values}) for group in GROUPS]
    try:
        in_file = frozenset(values) - frozenset(namespace)
        config = Config(*groups, given=frozenset(values), in_file=in_file, file=file, legacy=tuple(legacy_lines))
    except ValueError as error:
        raise UserError(str(error)) from None
    data = config.data
    if (
        data.dataset_path is None
        and config.run.mode not in (PLAN, EXPORT)
        and (data.dataset_type != "synthetic" or data.synthetic_dataset_use_feature_spec)
        and not (data.train_data_pattern or data.eval_data_pattern)
    ):
        raise UserError("--dataset_path is missing: give the folder of a tf_raw dataset, or --dataset_type synthetic to run without files")
    return config
