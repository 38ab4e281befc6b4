"""Conversion of dataclasses to flags and back."""

import argparse
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.errors import refused
from utils.config.flags import Parser, add_flags, read_yaml
from utils.config.option import build, option
from utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Group:
    """Things to set. More words."""

    amp: bool = option(False, "a switch", modes=("train",))
    cache: bool = option(True, "another switch")
    dims: tuple[int, ...] = option((3, 2), "widths", unit="columns")
    names: tuple[str, ...] = option((), "words")
    steps: int = option(10, "how many", unit="steps")
    limit: int | None = option(None, "how many at most, 100 % at least")
    rate: float = option(0.5, "how fast")
    kind: str = option("a", "which", choices=("a", "b"))
    data_path: str | None = option(None, "where")

    def __post_init__(self):
        if self.steps < 0:
            raise ValueError(f"--steps {self.steps}: expected 0 or more")


def parse(*arguments):
    parser = Parser(prog="test")
    add_flags(parser, [Group])
    return build(Group, vars(parser.parse_strictly(arguments)))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--amp"], True),
        (["--noamp"], False),
        (["--amp", "--noamp"], False),
        (["--noamp", "--amp"], True),
        *[([f"--amp={word}"], True) for word in ("true", "True", "TRUE", "t", "1", "yes", "on")],
        *[([f"--amp={word}"], False) for word in ("false", "False", "f", "0", "no", "off")],
        (["--amp", "true"], True),
        (["--amp", "false"], False),
        (["--amp", "--steps", "3"], True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_all_spellings_of_a_boolean(words, value):
    assert parse(*words).amp is value


def test_a_boolean_that_is_true_by_default_can_be_switched_off():
    assert parse().cache is True
    assert parse("--nocache").cache is parse("--cache=false").cache is False


@pytest.mark.parametrize("text", ["512,256,128", "512, 256 ,128", "[512,256,128]", "[512, 256, 128]", "512,256,128,"])
def test_all_spellings_of_a_list(text):
    assert parse("--dims", text).dims == parse(f"--dims={text}").dims == (512, 256, 128)


def test_lists_of_words_and_empty_lists():
    assert parse("--names", "a,b").names == ("a", "b")
    assert parse("--dims", "").dims == parse("--dims", "[]").dims == ()


@pytest.mark.parametrize(("text", "value"), [("5", 5), ("-1", -1), ("65536.0", 65536)])
def test_whole_numbers(text, value):
    assert parse("--limit", text).limit == value


@given(st.integers())
def test_any_whole_number_is_read_exactly(value):
    assert parse(f"--limit={value}").limit == value


@given(st.floats(allow_nan=False))
def test_any_number_is_read_exactly(value):
    assert parse(f"--rate={value!r}").rate == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "many"], "--steps: 'many' is not a whole number"),
        (["--steps", "1.5"], "--steps: '1.5' is not a whole number"),
        (["--steps", ""], "--steps: '' is not a whole number"),
        (["--steps", "²"], "is not a whole number"),
        (["--steps", "1e400"], "is not a whole number"),
        (["--rate", "fast"], "--rate: 'fast' is not a number"),
        (["--amp=maybe"], "--amp: 'maybe' is not true or false"),
        (["--dims", "1,x"], "--dims: '1,x' is not a list of whole numbers separated by commas"),
        (["--kind", "c"], "--kind: 'c' is not one of a, b"),
        (["--steps"], "--steps: expected one argument"),
        (["--step", "3"], "unknown flag --step; did you mean --steps?"),
        (["--stpes=3"], "unknown flag --stpes; did you mean --steps?"),
        (["--nothing_like_it"], "unknown flag --nothing_like_it"),
        (["positional"], "unknown argument positional"),
        (["--steps", "-3"], "--steps -3: expected 0 or more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_flag_is_a_one_line_error_that_names_it(words, message):
    with refused(message):
        parse(*words)


def test_flags_not_given_are_absent():
    parser = Parser(prog="test")
    add_flags(parser, [Group])
    assert vars(parser.parse_strictly(["--steps", "10"])) == {"steps": 10}


def test_help_states_unit_default_choices_and_modes(capsys):
    parser = Parser(prog="test")
    add_flags(parser, [Group])
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Things to set" in text
    for line in (
        "--amp [true|false] a switch (default: false; only with --mode train)",
        "--dims N,N,… widths (columns; default: 3,2)",
        "--names A,B,… words",
        "--steps N how many (steps; default: 10)",
        "--limit N how many at most, 100 % at least",
        "--rate X how fast (default: 0.5)",
        "--kind a|b which (default: a)",
        "--data_path PATH where",
    ):
        assert line in text
    assert "--noamp" not in text


def yaml(tmp_path, text):
    path = tmp_path / "flags.yaml"
    path.write_text(text)
    return read_yaml(str(path), [Group])


def test_yaml_values_are_read_like_flags(tmp_path):
    values = yaml(tmp_path, "amp: yes\ncache: false\ndims: [4, 2]\nnames: a,b\nsteps: 7\nlimit: null\nrate: 1e-3\nkind: b\ndata_path: /data\n")
    assert build(Group, values) == Group(True, False, (4, 2), ("a", "b"), 7, None, 0.001, "b", "/data")


def test_an_empty_yaml_file_sets_nothing(tmp_path):
    assert yaml(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: many", "steps: 'many' is not a whole number"),
        ("steps:", "steps has no value, expected a whole number"),
        ("amp: null", "amp has no value, expected true or false"),
        ("dims: [1, x]", "is not a list of whole numbers"),
        ("step: 3", "'step' is not a flag; did you mean steps?"),
        ("3: 3", "3 is not a flag"),
        ("- steps", "expected a mapping of flags to values, found list"),
        ("steps", "expected a mapping of flags to values, found str"),
        ("steps: [", "flags.yaml"),
        ("steps: {a: 1}", "is not a whole number"),
        ("!!python/object:os.system {}", "flags.yaml"),
        ("\0", "flags.yaml"),
    ],
)
def test_invalid_yaml_is_a_one_line_error_that_names_file_and_flag(tmp_path, text, message):
    with refused(message) as raised:
        yaml(tmp_path, text)
    assert "flags.yaml" in str(raised.value)


def test_missing_yaml_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.yaml"):
        read_yaml(str(tmp_path / "nothing.yaml"), [Group])


def test_abbreviated_flags_are_rejected():
    parser = Parser(prog="test")
    add_flags(parser, [Group])
    assert isinstance(parser, argparse.ArgumentParser)
    with pytest.raises(UserError, match="unknown flag --ra"):
        parser.parse_strictly(["--ra", "1"])
