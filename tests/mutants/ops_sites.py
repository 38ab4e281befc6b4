"""Places in the C++ sources for mutants; all changes are compiled in, and one of them is chosen when the library is loaded.

`DLRM_MUTANT=7` in the environment chooses the seventh. Each is an insertion that is 0, or a factor of 1, unless it is the chosen one, so that the
sources need not be parsed: `i < n` becomes `i < DLRM_ADD(7) n`, which is `i < 1 + n`, and `a + b` becomes `a + DLRM_SIGN(7) b`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HEADER = "mutant.h"
SWITCH = """#ifndef DLRM_OPS_MUTANT_H_
#define DLRM_OPS_MUTANT_H_

#include <cstdlib>

namespace dlrm {
inline const int kMutant = std::getenv("DLRM_MUTANT") ? std::atoi(std::getenv("DLRM_MUTANT")) : 0;
}  // namespace dlrm

#define DLRM_IS(number) (::dlrm::kMutant == number)
#define DLRM_ADD(number) DLRM_IS(number) +
#define DLRM_TAKE(number) -int(DLRM_IS(number)) +
#define DLRM_SIGN(number) (DLRM_IS(number) ? -1 : 1) *
#define DLRM_DOUBLE(number) (DLRM_IS(number) ? 2 : 1) *
#define DLRM_HALF(number) (DLRM_IS(number) ? 2 : 1) /
#define DLRM_UNLESS(number) if (!DLRM_IS(number))

#endif  // DLRM_OPS_MUTANT_H_
"""
# By operator: the macro inserted behind it, and the kind of the change.
BEHIND = {
    "<": ("DLRM_ADD", "comparison"),
    ">=": ("DLRM_ADD", "comparison"),
    "==": ("DLRM_ADD", "comparison"),
    "!=": ("DLRM_ADD", "comparison"),
    "<=": ("DLRM_TAKE", "comparison"),
    ">": ("DLRM_TAKE", "comparison"),
    "+": ("DLRM_SIGN", "arithmetic"),
    "-": ("DLRM_SIGN", "arithmetic"),
    "+=": ("DLRM_SIGN", "arithmetic"),
    "-=": ("DLRM_SIGN", "arithmetic"),
    "*": ("DLRM_DOUBLE", "arithmetic"),
    "/": ("DLRM_HALF", "arithmetic"),
}
_OPERATOR = re.compile(r"(?<=[\w)\]}]) (<=|>=|==|!=|\+=|-=|<|>|\+|-|\*|/) (?=[\w(])")
_NUMBER = re.compile(r"(?<=[ (\[])(\d+)(?=[ ;,)\]])")
_CONDITION = re.compile(r"\bif (\()")
_STATEMENT = re.compile(r"^\s+((?:\+\+|--)?[\w.\->\[\]:]+(?: [+\-*/|&]?= |\().*;)$")
_NO_CODE = re.compile(  # lines without code, or code without visible effects such as prefetches
    r"^\s*(#|//|template\b|using\b|case\b|static_assert|static constexpr|constexpr|inline constexpr|enum\b|return;|TF_|REGISTER_)"
    r"|Prefetch|PreferHugePages|\breserve\(|\boperator\b|\balignas\("
)
_NOT_ALONE = re.compile(r"^\s+(return|delete|throw|else|if|for|while|do|switch|using|const|static|break|continue|case|default)\b")


class Site(NamedTuple):
    """A change of one line: texts to insert at places in it; `{}` stands for the mutant's number."""

    path: str
    line: int
    kind: str
    inserted: tuple[tuple[int, str], ...]

    def shown(self, text: str) -> str:
        """Return the line with the inserted text, for display."""
        for at, word in sorted(self.inserted, reverse=True):
            text = text[:at] + word.format("M") + text[at:]
        return text.strip()


def sites_of(path: str, source: str) -> Iterator[Site]:
    """Yield the changes of a file."""
    previous = ""
    for number, line in enumerate(source.splitlines(), 1):
        code = line.split(" // ")[0].rstrip()
        if not _NO_CODE.search(code) and '"' not in code:
            for found in _OPERATOR.finditer(code):
                word, kind = BEHIND[found[1]]
                yield Site(path, number, kind, ((found.end(), f"{word}({{}}) "),))
            for found in _NUMBER.finditer(code):
                yield Site(path, number, "constant", ((found.start(), "(DLRM_ADD({}) "), (found.end(), ")")))
            for found in _CONDITION.finditer(code):
                end = _closing(code, found.start(1))
                if end and not re.search(r"[;=]", re.sub(r"[=!<>]=", "", code[found.start(1) : end])):
                    yield Site(path, number, "condition", ((found.start(1) + 1, "DLRM_IS({}) != bool("), (end, ")")))
            alone = previous.endswith((";", "{", "}")) and not _NOT_ALONE.match(code)
            if alone and (found := _STATEMENT.match(code)) and code.count("(") == code.count(")"):
                yield Site(path, number, "statement removed", ((found.start(1), "DLRM_UNLESS({}) "),))
        previous = code or previous


def _closing(code: str, start: int) -> int:
    """Return the position of the parenthesis that closes the one at `start`; 0 if it is not in this line."""
    depth = 0
    for at in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return at
    return 0


def switched(folder: Path, sites: Sequence[Site]) -> None:
    """Write all changes into the sources of a folder; the first is number 1."""
    (folder / HEADER).write_text(SWITCH)
    for name in {site.path for site in sites}:
        path = folder / name
        lines = path.read_text().split("\n")
        inserted: dict[int, list[tuple[int, int, str]]] = {}
        for number, site in enumerate(sites, 1):
            if site.path == name:
                inserted.setdefault(site.line, []).extend((at, number, word.format(number)) for at, word in site.inserted)
        for line, words in inserted.items():
            for at, _, word in sorted(words, reverse=True):
                lines[line - 1] = lines[line - 1][:at] + word + lines[line - 1][at:]
        first = next(i for i, line in enumerate(lines) if line.startswith("#include"))  # behind a header's include guard
        path.write_text("\n".join([*lines[:first], f'#include "{HEADER}"', *lines[first:]]))
