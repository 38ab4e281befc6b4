"""Regular expressions have only what every supported Python matches rightly."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("utils", "model", "training", "run", "serving", "served", "deployment", "dataloading", "preproc", "report", "benchmarks")
POSSESSIVE = re.compile(r"(?<!\\)(?:\\\\)*[*+?}]\+|\(\?>")


def possessive(source):
    """Return the lines with a possessive quantifier or an atomic group in an argument of a function of `re`.

    Before Python 3.11.5, which Debian 12 does not have, these match less than they should.
    """
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    of_re = [node for node in calls if isinstance(node.func.value, ast.Name) and node.func.value.id == "re"]
    parts = [one for node in of_re for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str | bytes)]
    texts = [(one.lineno, one.value if isinstance(one.value, str) else one.value.decode("latin-1")) for one in parts]
    return [line for line, text in texts if POSSESSIVE.search(text)]


def test_no_pattern_of_the_program_has_possessive_quantifiers():
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")] + sorted(ROOT.glob("*.py"))
    found = [f"{path.relative_to(ROOT)}, line {line}" for path in paths for line in possessive(path.read_text())]
    assert len(paths) > 300 and found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (r"re.compile(rb'[^\"]++')", [1]),
        (r"re.match('(?:%s){2}+' % a, b)", [1]),
        (r"re.sub(r'(?>a|b)', '', text)", [1]),
        (r"re.compile(r'a\++b+')", []),
        (r"re.compile(r'a\\++')", [1]),
        (r"other.compile('a++')", []),
    ],
)
def test_possessive_quantifiers_are_recognised(source, lines):
    assert possessive(source) == lines
