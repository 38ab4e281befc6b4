"""An option: a field of a dataclass, with all that is known of it; `flags` makes command lines of them. Imports no argument parser."""

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from utils.errors import UserError


class Reader(typing.NamedTuple):
    """How a flag's text becomes its value, where its type does not say: `read` raises ValueError for what is not `expected`."""

    read: typing.Callable[[str], Any]
    expected: str
    metavar: str


# What a run that restores a checkpoint has of a flag that it was not given.
FREE = "free"  # the default: each start says it for itself
INHERIT = "inherit"  # where it goes on: what the checkpoint's run had
MUST_EQUAL = "must_equal"  # the same, and given another value it cannot go on: the position in the data or the optimizer's state would not fit
WITH_WEIGHTS = "with_weights"  # in every mode, as soon as weights are taken: what the checkpoint's run had
MODEL = "model"  # the same, and another value is refused: the weights fit no other


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a number may be, by itself; a float must be finite.

    Attributes:
        expected: in words, for the error.
        least, most: the bounds.
        above, below: the first, or the last, is not allowed itself.
        besides: other values that are.
    """

    expected: str
    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False
    besides: Sequence[Any] = ()

    def hold(self, value: float, whole: bool) -> bool:
        """Whether a value is within, of an option of whole numbers or of others; NaN never is."""
        if value in self.besides:
            return True
        return (
            (whole or _finite(value))
            and (self.least < value if self.above else self.least <= value)
            and (value < self.most if self.below else value <= self.most)
        )


POSITIVE, FROM_0, FROM_1 = Bounds("a positive number", 0, above=True), Bounds("0 or more", 0), Bounds("at least 1", 1)


class Facts(typing.TypedDict, total=False):
    """What there is to say of an option beside its default and its help.

    Attributes:
        unit: of the value, "samples" for instance.
        choices: the allowed words.
        reader: of its text.
        bounds: of its value, where it is a number.
        repeated: a tuple whose flag may be given several times, each adding to those before.
        modes: where it has an effect; empty for everywhere.
        optimizers: with which it has one; empty for all.
        needs: without which flag it has none: "amp", or with its value: "interaction cross".
        not_with: with which flags it has none.
        resume: one of `FREE`, `INHERIT`, `MUST_EQUAL`, `WITH_WEIGHTS` and `MODEL`.
        replaced_by: flags beside which the checkpoint's value does not hold: they say it in another way.
        in_scores: it changes the last digits of a score, so evaluation, too, repeats what training used unless it is given.
        unrecorded: what runs had that wrote checkpoints before there was the option, where that is not the default.
        pytorch: its names in NVIDIA's DLRM for PyTorch.
    """

    unit: str
    choices: Sequence[str]
    reader: Reader | None
    bounds: Bounds | None
    repeated: bool
    modes: Sequence[str]
    optimizers: Sequence[str]
    needs: str
    not_with: Sequence[str]
    resume: str
    replaced_by: Sequence[str]
    in_scores: bool
    unrecorded: typing.Any
    pytorch: Sequence[str]


_UNSAID: Facts = {
    "unit": "",
    "choices": (),
    "reader": None,
    "bounds": None,
    "repeated": False,
    "modes": (),
    "optimizers": (),
    "needs": "",
    "not_with": (),
    "resume": FREE,
    "replaced_by": (),
    "in_scores": False,
    "pytorch": (),
}


def option(default: Any, help: str, **facts: typing.Unpack[Facts]) -> Any:
    """A dataclass field that becomes a flag: all that is known of it stands here, and nowhere else.

    Args:
        default: the value where neither the command line nor the configuration file gives one.
        help: what it does, one sentence; the unit and the default are added.
        facts: see `Facts`.
    """
    if unknown := facts.keys() - Facts.__annotations__.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: not what an option says of itself")
    return dataclasses.field(default=default, metadata={"help": help} | _UNSAID | facts)


def options_of(groups: Iterable[type]) -> dict[str, dataclasses.Field]:
    """The options of groups, by name."""
    return {field.name: field for group in groups for field in dataclasses.fields(group) if "help" in field.metadata}


def holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Whether flags fulfil a condition: "amp" (it is on, or has a value), "interaction cross" (it has this one).

    Args:
        condition: a flag's name, and its value as it is typed where one is meant.
        values: of flags, by name.
    """
    name, _, word = condition.partition(" ")
    value = values[name]
    return str(value).lower() == word if word else value is not None and value is not False


def check(condition: bool, flag: str, value: Any, expected: str) -> None:
    """Raise ValueError that names the flag, its value and what was expected, unless the condition holds."""
    if not condition:
        raise ValueError(f"--{flag} {value}: expected {expected}")


def check_options(group: Any) -> None:
    """Compare the options of a group with their types, choices and bounds: what comes from a checkpoint's manifest has passed no parser.

    Raises:
        ValueError: names the flag, the value and what was expected.
    """
    hints = typing.get_type_hints(type(group))
    for field in dataclasses.fields(group):
        value, kind, choices = getattr(group, field.name), hints[field.name], field.metadata["choices"]
        if value is None and type(None) in typing.get_args(kind):
            continue
        if inner(kind) in (bool, float) and choices and _is_of(value, inner(kind)):
            continue
        if (reader := field.metadata["reader"]) and any(_is_of(value, part) for part in typing.get_args(kind)):
            continue
        if not (choices or _is_of(value, inner(kind))) or (choices and value not in choices):
            shown = ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
            words = choices and inner(kind) not in (bool, float)
            expected = f"one of {', '.join(choices)}" if words else reader.expected if reader else kind_name(inner(kind), choices)
            raise ValueError(f"--{field.name} {shown[:80]}: expected {expected}")
    for field in dataclasses.fields(group):
        value, bounds = getattr(group, field.name), field.metadata["bounds"]
        if bounds is not None and isinstance(value, numbers.Real):
            check(bounds.hold(value, inner(hints[field.name]) is int), field.name, value, bounds.expected)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can be
        return False


def _is_of(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_of(item, typing.get_args(kind)[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def build(group: type, values: Mapping[str, Any]) -> Any:
    """An instance of `group` from those of `values` that are its fields. Raises UserError with what its checks say."""
    names = {field.name for field in dataclasses.fields(group)}
    try:
        return group(**{name: value for name, value in values.items() if name in names})
    except ValueError as error:
        raise UserError(str(error)) from None


def inner(kind: Any) -> Any:
    """int for `int | None`."""
    if isinstance(kind, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def kind_name(kind: Any, choices: Sequence[str] = ()) -> str:
    if kind in (bool, float) and choices:
        return f"{'true, false' if kind is bool else 'a number'} or {' or '.join(choices)}"
    if typing.get_origin(kind) is tuple:
        return f"a list of {'whole numbers' if typing.get_args(kind)[0] is int else 'words'} separated by commas"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
