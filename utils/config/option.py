"""Options: fields of dataclasses with their metadata, from which `flags` makes command-line flags. This module imports no argument parser."""

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from utils.errors import UserError


class Reader(typing.NamedTuple):
    """A parser of a flag's text, for types without a standard one; `read` raises ValueError for a text that is not `expected`."""

    read: typing.Callable[[str], Any]
    expected: str
    metavar: str


# The value of a flag that was not given, in a run that restores a checkpoint.
FREE = "free"  # the flag's default: each start sets its own value
INHERIT = "inherit"  # the checkpoint's value, where the run resumes
MUST_EQUAL = "must_equal"  # as INHERIT, and a run cannot resume with another value: the position in the data or the optimizer state would not fit
WITH_WEIGHTS = "with_weights"  # the checkpoint's value, in every mode, whenever weights are restored
MODEL = "model"  # as WITH_WEIGHTS, and any other value is an error: the weights would not fit


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The range of a number, independent of other options; a float must also be finite.

    Attributes:
        expected: the range in words, for the error message.
        least, most: the bounds.
        above, below: `least` or `most` itself is not allowed.
        besides: values that are allowed outside the bounds.
    """

    expected: str
    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False
    besides: Sequence[Any] = ()

    def hold(self, value: float, whole: bool) -> bool:
        """Return whether a value is within the bounds; `whole`: the option takes whole numbers. NaN never is."""
        if value in self.besides:
            return True
        return (
            (whole or _finite(value))
            and (self.least < value if self.above else self.least <= value)
            and (value < self.most if self.below else value <= self.most)
        )


POSITIVE, FROM_0, FROM_1 = Bounds("a positive number", 0, above=True), Bounds("0 or more", 0), Bounds("at least 1", 1)


class Facts(typing.TypedDict, total=False):
    """The metadata of an option, besides its default and its help text.

    Attributes:
        unit: the unit of the value, "samples" for instance.
        choices: the allowed words.
        reader: the parser of its text.
        bounds: the bounds of its value, where it is a number.
        repeated: the option is a tuple whose flag may be given several times, each adding to the values before.
        modes: the modes in which it has an effect; empty for all.
        optimizers: the optimizers with which it has an effect; empty for all.
        needs: the flag without which it has no effect: "amp", or a flag and its value: "interaction cross"; or one of several: "linear or amp".
        not_with: flags with which it has no effect.
        resume: one of `FREE`, `INHERIT`, `MUST_EQUAL`, `WITH_WEIGHTS` and `MODEL`.
        replaced_by: flags that override the checkpoint's value, because they set the same thing in another way.
        in_scores: it changes the last digits of a score, or whether the weights fit into memory, so evaluation, too, uses the training run's value
            unless the flag is given.
        unrecorded: the value in effect for checkpoints written before the option existed, where it is not the default.
        pytorch: its names in NVIDIA's DLRM for PyTorch.
        wide_and_deep: its names in NVIDIA's Wide & Deep for TensorFlow 2.
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
    wide_and_deep: Sequence[str]


_DEFAULTS: Facts = {
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
    "wide_and_deep": (),
}


def option(default: Any, help: str, **facts: typing.Unpack[Facts]) -> Any:
    """Make a dataclass field that becomes a flag; the call is the only description of the option.

    Args:
        default: the value where neither the command line nor the configuration file gives one.
        help: one sentence about its effect; `--help` adds the unit and the default.
        facts: its metadata, see `Facts`.
    """
    if unknown := facts.keys() - Facts.__annotations__.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: unknown metadata of an option")
    return dataclasses.field(default=default, metadata={"help": help} | _DEFAULTS | facts)


def options_of(groups: Iterable[type]) -> dict[str, dataclasses.Field]:
    """Return the options of groups, by name."""
    return {field.name: field for group in groups for field in dataclasses.fields(group) if "help" in field.metadata}


def holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Return whether flags fulfil a condition: "amp" (the flag is on, or has a value) or "interaction cross" (it has this value).

    Args:
        condition: a flag's name, and where a certain value is meant, that value as it is typed; or several such conditions, joined by " or ".
        values: the values of flags, by name.
    """
    if " or " in condition:
        return any(holds(one, values) for one in condition.split(" or "))
    name, _, word = condition.partition(" ")
    value = values[name]
    return str(value).lower() == word if word else value is not None and value is not False


def check(condition: bool, flag: str, value: Any, expected: str) -> None:
    """Raise ValueError, which names the flag, its value and the expected values, unless the condition holds."""
    if not condition:
        raise ValueError(f"--{flag} {value}: expected {expected}")


def check_options(group: Any) -> None:
    """Check the options of a group against their types, choices and bounds; values from a checkpoint's manifest have not passed a parser.

    Raises:
        ValueError: a value is invalid; the message names the flag, the value and the expected values.
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
    except OverflowError:  # an int beyond the range of floats
        return False


def _is_of(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_of(item, typing.get_args(kind)[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def build(group: type, values: Mapping[str, Any]) -> Any:
    """Construct a `group` from those of `values` that are its fields. Raises UserError with the message of a failed check."""
    names = {field.name for field in dataclasses.fields(group)}
    try:
        return group(**{name: value for name, value in values.items() if name in names})
    except ValueError as error:
        raise UserError(str(error)) from None


def inner(kind: Any) -> Any:
    """Return the type without None: int for `int | None`."""
    if isinstance(kind, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def kind_name(kind: Any, choices: Sequence[str] = ()) -> str:
    if kind in (bool, float) and choices:
        return f"{'true, false' if kind is bool else 'a number'} or {' or '.join(choices)}"
    if typing.get_origin(kind) is tuple:
        return f"a list of {'whole numbers' if typing.get_args(kind)[0] is int else 'words'} separated by commas"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
