"""Conversion between typed dataclasses and command-line flags: one description of each option serves --help, YAML files and checks."""

import argparse
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from utils.config.option import inner, kind_name
from utils.errors import UserError
from utils.paths import check_words

TRUE, FALSE = ("true", "t", "1", "yes", "on"), ("false", "f", "0", "no", "off")


class _Added(argparse.Action):
    """An action that appends to a tuple each time its flag is given."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *values))


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors, which suggest the nearest flag where one was misspelt."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> typing.NoReturn:
        raise UserError(f"{message} (--help lists every flag)")

    def flags(self) -> list[str]:
        """Return the names of all flags, with their dashes."""
        return list(self._option_string_actions)

    def parse_strictly(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse a command line. Raises UserError for unknown flags, invalid values and paths that are not UTF-8."""
        check_words(arguments)
        namespace, unknown = self.parse_known_args(list(arguments))
        if unknown:
            name = unknown[0].split("=")[0]
            near = difflib.get_close_matches(name, self._option_string_actions, n=1)
            self.error(f"unknown {'flag' if name.startswith('-') else 'argument'} {name}" + (f"; did you mean {near[0]}?" if near else ""))
        return namespace


def add_flags(parser: Parser, groups: Iterable[type], defaults: Mapping[str, Any] = types.MappingProxyType({})) -> None:
    """Add a flag for every field of every dataclass, grouped by class; the class docstring's first line is the group's title.

    A boolean `amp` accepts `--amp`, `--noamp`, `--amp=true` and `--amp false`; one of type `bool | str` also accepts its choices. A tuple takes
    words separated by commas. Flags that were not given are absent from the namespace. The help shows `defaults` in place of the classes' own.
    """
    for group in groups:
        section = parser.add_argument_group(group.__doc__.splitlines()[0].rstrip("."))
        hints = typing.get_type_hints(group)
        for field in dataclasses.fields(group):
            if "help" not in field.metadata:
                continue
            kind = hints[field.name]
            arguments: dict[str, Any] = {
                "dest": field.name,
                "default": argparse.SUPPRESS,
                "help": _help(field, defaults.get(field.name, field.default)),
                "type": _converter(field, kind),
            }
            if inner(kind) is bool:
                arguments |= {"nargs": "?", "const": True, "metavar": "|".join(("true", "false", *field.metadata["choices"]))}
                section.add_argument(f"--no{field.name}", dest=field.name, action="store_false", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
            else:
                words = field.metadata["choices"]
                arguments |= {"action": _Added} if field.metadata["repeated"] else {}
                arguments["metavar"] = "|".join(("X", *words) if words and inner(kind) is float else words) or _metavar(field, kind)
            section.add_argument(f"--{field.name}", **arguments)


def read_yaml(path: str, groups: Iterable[type]) -> dict[str, Any]:
    """Read flags from a YAML file: a mapping of flag names (without dashes) to values.

    Raises:
        UserError: the file is missing or not a mapping, a name is no flag, or a value is of the wrong type.
    """
    from utils.yaml_file import load_yaml  # imported only where a file is given

    try:
        content = load_yaml(path)
    except UserError as error:
        raise UserError(f"--config {error}") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise UserError(f"--config {path}: expected a mapping of flags to values, found {type(content).__name__}")
    known = {field.name: (field, typing.get_type_hints(group)[field.name]) for group in groups for field in dataclasses.fields(group)}
    values = {}
    for name, value in content.items():
        if name not in known or "help" not in known[name][0].metadata:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise UserError(f"--config {path}: {_brief(name)} is not a flag" + (f"; did you mean {near[0]}?" if near else ""))
        field, kind = known[name]
        value = _words(value, f"--config {path}: {name}")
        if value is None and type(None) not in typing.get_args(kind):
            raise UserError(f"--config {path}: {name} has no value, expected {kind_name(inner(kind), field.metadata['choices'])}")
        try:
            values[name] = None if value is None else _converter(field, kind)(str(value))
        except argparse.ArgumentTypeError as error:
            raise UserError(f"--config {path}: {name}: {error}") from None
    return values


def _words(value: Any, where: str) -> Any:
    """Convert a YAML list to the command line's form, values separated by commas; other values are unchanged."""
    if not isinstance(value, list):
        return value
    for item in value:
        if item is None or isinstance(item, (list, dict, set)):
            found = {list: "a list", dict: "a mapping", set: "a set"}.get(type(item), "an empty value")
            raise UserError(f"{where}: expected a list of values, found {found} in it")
    return ",".join(map(str, value))


def _brief(value: Any) -> str:
    """Format a value for messages, a long one shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _converter(field: dataclasses.Field, kind: Any) -> typing.Callable[[str], Any]:
    kind, optional = inner(kind), type(None) in typing.get_args(kind) and inner(kind) in (int, float)  # only for numbers: a path may be called "none"
    choices, reader = field.metadata["choices"], field.metadata["reader"]

    def read(text: str) -> Any:
        try:
            return reader.read(text)
        except (ValueError, OverflowError) as error:
            raise argparse.ArgumentTypeError(f"{_brief(text)} is not {reader.expected}" if ".json" not in text else str(error)) from None

    def convert(text: str) -> Any:
        try:
            if optional and text.lower() == "none":
                return None
            if typing.get_origin(kind) is tuple:
                return tuple(typing.get_args(kind)[0](word) for word in text.replace("[", "").replace("]", "").split(",") if word.strip())
            if kind in (bool, float) and text.lower() in choices:
                return text.lower()
            if kind is bool:
                if text.lower() not in TRUE + FALSE:
                    raise ValueError
                return text.lower() in TRUE
            if kind is int and text.lstrip("-").replace(".", "", 1).isdigit() and float(text).is_integer():
                return int(float(text)) if "." in text else int(text)
            value = kind(text)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"{_brief(text)} is not {kind_name(kind, choices)}") from None
        if choices and kind is not float and value not in choices:
            raise argparse.ArgumentTypeError(f"{_brief(text)} is not one of {', '.join(choices)}")
        if kind is str and not _is_encodable(text):
            raise argparse.ArgumentTypeError(f"{_brief(text)} holds a character that is not allowed in paths and names")
        return value

    return read if reader else convert


def _is_encodable(text: str) -> bool:
    """Return whether a text can be a path or a name: it has no NUL and no half of a surrogate pair, which YAML can express."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _metavar(field: dataclasses.Field, kind: Any) -> str:
    kind = inner(kind)
    if field.metadata["reader"]:
        return field.metadata["reader"].metavar
    if typing.get_origin(kind) is tuple:
        return "N,N,…" if typing.get_args(kind)[0] is int else "A,B,…"
    return {int: "N", float: "X", str: "PATH" if "path" in field.name else "TEXT"}[kind]


def _help(field: dataclasses.Field, default: Any) -> str:
    if isinstance(default, tuple):
        default = ",".join(str(item) for item in default)
    notes = [field.metadata["unit"]] if field.metadata["unit"] else []
    if default is not None and default != "":
        notes.append(f"default: {str(default).lower() if isinstance(default, bool) else default}")
    if field.metadata["modes"]:
        notes.append(f"only with --mode {'|'.join(field.metadata['modes'])}")
    return (field.metadata["help"] + (f" ({'; '.join(notes)})" if notes else "")).replace("%", "%%")
