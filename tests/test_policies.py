"""Every flag is read somewhere, and every command in the documentation exists."""

import ast
import dataclasses
import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from flag_reads import Reads

from utils.config.config import GROUPS
from utils.dialects.pytorch_flags import LEGACY

ROOT = Path(__file__).parents[1]
FIELDS = [field.name for group in GROUPS for field in dataclasses.fields(group)]
FOLDERS = ("utils", "model", "training", "run", "serving", "deployment", "dataloading", "preproc")


NAMING = ("ineffective.py", "inherit.py")  # they name flags but do not use their values


def program():
    """Return the text of every module that a run may execute, by its path."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")] + sorted(ROOT.glob("*.py"))
    return {path: path.read_text() for path in paths if path.name not in NAMING}


FLAGS = [(group.__name__, field.name) for group in GROUPS for field in dataclasses.fields(group)]
GROUP_NAMES = [group.__name__ for group in GROUPS]


@functools.cache
def read_flags():
    return Reads(program(), GROUP_NAMES).flags()


@pytest.mark.parametrize(("group", "name"), FLAGS, ids=[name for _, name in FLAGS])
def test_every_flag_is_read_somewhere(group, name):
    assert (group, name) in read_flags(), (
        f"--{name} is accepted but never read: checks of {group}.__post_init__, {' and '.join(NAMING)}, and getattr by a name do not count; "
        f"code that reads it needs type annotations, from a `{group}` or a `Config` on"
    )


OPTIONS = """
@dataclass(frozen=True)
class Some:
    size: int = option(3, "size")

    def __post_init__(self):
        check(self.size >= 1, "size", self.size, "at least 1")

    @property
    def half(self) -> int:
        return self.size // 2

@dataclass(frozen=True)
class Config:
    some: Some
"""


@pytest.mark.parametrize(
    ("reader", "read"),
    [
        ("", False),
        ("def f(config: Config):\n    return config.some.size", True),
        ("def f(config: Config):\n    options = config.some\n    return options.size", True),
        ("def f(config: Config):\n    return config.some.half", True),
        (
            "class A:\n    def __init__(self, config: Config):\n        self._some = config.some\n    def f(self):\n        return self._some.size",
            True,
        ),
        ("class A:\n    config: Config\nclass B(A):\n    pass\ndef f(run: B):\n    return run.config.some.size", True),
        ("def f() -> Config:\n    return made()\ndef g():\n    config = f()\n    return (config.some.size for _ in range(3))", True),
        ("RULES: Mapping[str, Callable[[Some, int], Rule]] = {'a': lambda options, dim: Rule(options.size)}", True),
        ("def f(queue: Queue):\n    return queue.size", False),  # an attribute of another class
        ("def f(array):\n    return array.size", False),
        ("NAMES = ('size',)", False),  # a string
        ("def f(config: Config):\n    config.some.size = 3", False),  # an assignment, not a read
        ("def f(config: Config):\n    options = config.some\n    options = array()\n    return options.size", False),
    ],
)
def test_reads_of_a_flag_are_recognised(reader, read):
    assert (("Some", "size") in Reads({Path("options.py"): OPTIONS, Path("reader.py"): reader}, ["Some"]).flags()) is read


def test_legacy_flags_are_not_own_flags():
    assert not set(LEGACY) & set(FIELDS)


# Commands of the documentation ------------------------------------------------------------------------------------------


def commands(path):
    """Yield the commands of a file's code blocks (or of a module's docstring), with lines that end in a backslash joined."""
    text = path.read_text()
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.M | re.S) if path.suffix == ".md" else [ast.get_docstring(ast.parse(text))]
    for block in blocks:
        for line in re.sub(r"\\\\?\n\s*", " ", block).splitlines():
            line = re.sub(r"^\s*\$ ", "", line).strip()
            if re.search(r"(^|\s)(python3? (-\w+ )*(dlrm\.py|-m )|\./?scripts/|scripts/\w)", line) and not line.startswith("#"):
                yield line


DOCUMENTS = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "dlrm.py") if path.exists()]
COMMANDS = [(path, line) for path in DOCUMENTS for line in commands(path)]


@functools.cache
def known_flags(*program):
    result = subprocess.run([sys.executable, *program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, f"{' '.join(program)} --help: {result.stderr}"
    return set(re.findall(r"--[\w-]+", result.stdout))


def ours(module):
    return ROOT.joinpath(*module.split(".")).with_suffix(".py").is_file() or ROOT.joinpath(*module.split("."), "__main__.py").is_file()


def check_command(line):
    words = shlex.split(line.split(" | ")[0].split(" > ")[0], comments=True)
    for word in words:
        if "scripts/" in word and not word.startswith("-"):
            assert (ROOT / word).is_file(), f"{word} does not exist"
    python = next((i for i, word in enumerate(words) if re.fullmatch(r"(.*/)?python3?", word)), None)
    if python is None:
        return
    rest = words[python + 1 :]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[1:]
    if rest[:1] == ["-m"]:
        if rest[1].split(".")[0] in ("pytest", "pip", "venv"):
            return
        assert ours(rest[1]), f"there is no module {rest[1]}"
        program, arguments = ("-m", rest[1]), rest[2:]
    else:
        assert (ROOT / rest[0]).is_file(), f"{rest[0]} does not exist"
        program, arguments = (rest[0],), rest[1:]
    known = known_flags(*program)
    for argument in arguments:
        if argument in ("&&", ";", "|", "&"):
            break
        flag = argument.split("=")[0]
        if flag.startswith("--"):
            assert flag in known or (flag.startswith("--no") and f"--{flag[4:]}" in known), f"{' '.join(program)} knows no {flag}"


def test_the_documentation_has_commands():
    assert any(path.name == "dlrm.py" for path, _ in COMMANDS)
    assert (ROOT / "README.md").is_file(), "there is no README.md"
    assert any(path.name == "README.md" for path, _ in COMMANDS), "README.md shows no command"


@pytest.mark.parametrize(("path", "line"), COMMANDS, ids=[f"{path.name}: {line[:70]}" for path, line in COMMANDS])
def test_commands_of_the_documentation_exist(path, line):
    check_command(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("python dlrm.py --bach_size 3", "knows no --bach_size"),
        ("horovodrun -np 2 python -u dlrm.py --amp --nothing", "knows no --nothing"),
        ("python -m dataloading.nothing", "no module dataloading.nothing"),
        ("./scripts/nothing --fast", "scripts/nothing does not exist"),
        ("python other.py", "other.py does not exist"),
    ],
)
def test_commands_that_do_not_exist_are_reported(line, message):
    with pytest.raises(AssertionError, match=message):
        check_command(line)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_the_documentation_links_to_exist(path):
    if path.suffix != ".md":
        return
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}, which does not exist"
