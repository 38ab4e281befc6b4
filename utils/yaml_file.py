"""Reading of YAML files that a user wrote: content that would be misread silently is an error, with the file and the line."""

import re
import stat
from pathlib import Path
from typing import Any

import yaml

from utils.errors import UserError

_MAX_BYTES = 8 << 20  # enough for some 25,000 features
_MAX_NODES = 1_000_000  # counted with every alias written out
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class YamlError(UserError):
    """A YAML file that cannot be read, or whose content is ambiguous."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, stricter: `1:30` and `010` stay texts (not 90 and 8); duplicate keys and exponentially growing aliases are errors."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            self._check(node, {})
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError) as error:  # PyYAML raises any of these for a bad value
            raise yaml.MarkedYAMLError(problem=f"{node.tag.rpartition(':')[2]}: {error}", problem_mark=node.start_mark) from None

    def _check(self, node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
        """Count a node and the nodes below it with every alias written out; raise an error for duplicate keys, recursive aliases and too many nodes.

        It runs on the node graph before construction, for merging (`<<`) copies keys that are overridden.
        """
        if isinstance(node, yaml.ScalarNode):
            return 1
        if node in sizes:
            if not sizes[node]:
                raise _at(node, "an alias that contains itself")
            return sizes[node]
        sizes[node], size = 0, 1
        if isinstance(node, yaml.MappingNode):
            self._refuse_duplicates(node)
        for child in node.value:
            for part in child if isinstance(child, tuple) else (child,):
                size += self._check(part, sizes)
            if size > _MAX_NODES:
                raise _at(node, f"more than {_MAX_NODES:,} values with every alias written out")
        sizes[node] = size
        return size

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                name = self.construct_object(key, deep=True)
                if name in seen:
                    raise _at(key, f"{str(key.value)[:60]!r} is given twice, first in line {seen[name]}")
                seen[name] = key.start_mark.line + 1


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag not in (_INT, _FLOAT)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"(?:(?:[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
    list("-+0123456789."),
)


def load_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file; None where it is empty.

    Raises:
        YamlError (a UserError): the file cannot be read, is not YAML, gives a key twice, or is too large; the message is one line with the path
            first, and the line number where there is one.
    """
    text = _read(Path(path))
    try:
        return yaml.load(text, _Loader)
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise YamlError(f"{path}, line {line}: not valid YAML: character {error.character:#04x}: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(f"{path}{where}: not valid YAML: {' '.join(reason.split())[:300]}") from None
    except RecursionError:
        raise YamlError(f"{path}: not valid YAML: nested too deeply") from None


def _read(path: Path) -> str:
    try:
        # Opening a named pipe without a writer would block; the pipes of the shell's `<(…)` have one.
        if stat.S_ISFIFO(path.stat().st_mode) and path.absolute().parts[1:2] not in (("dev",), ("proc",)):
            raise YamlError(f"{path}: a named pipe; expected a YAML file")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise YamlError(f"{str(path)!r}: {error}" if isinstance(error, ValueError) else f"{path}: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise YamlError(f"{path}: larger than {_MAX_BYTES >> 20} MiB; expected a YAML file")
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise YamlError(f"{path}, line {line}: byte {content[error.start]:#04x} is not {encoding.removesuffix('-sig').upper()}") from None


def _at(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
