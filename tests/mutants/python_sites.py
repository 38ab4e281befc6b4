"""Mutants of a Python file: the places of small changes that should make a test fail, and the text written there instead.

Left out, because no test need see them: docstrings, annotations, decorators, texts (f-strings, and all arguments of raised errors),
`__repr__`, imports for annotations only.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
# By operator: the replacement, with a and b for the operands.
ARITHMETIC = {
    ast.Add: "a - b",
    ast.Sub: "a + b",
    ast.Mult: "a / b",
    ast.Div: "a * b",
    ast.FloorDiv: "-(-a // b)",
    ast.Mod: "a // b",
    ast.Pow: "a * b",
    ast.LShift: "a >> b",
    ast.RShift: "a << b",
    ast.BitAnd: "a | b",
    ast.BitOr: "a",
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil", "sorted": "list", "zeros": "ones", "ones": "zeros"}
TALK = ("say", "warn", "print", "option")  # calls whose arguments are messages
UNSEEN = ("__repr__", "__str__")


class Mutant(NamedTuple):
    """A change of a file: the bytes from `start` to `stop` become `text`."""

    path: str
    first: int  # line of the statement
    last: int  # last line of the changed part
    start: int
    stop: int
    text: str
    kind: str

    def applied(self, source: bytes) -> bytes:
        """Return the file's content with the change."""
        return source[: self.start] + self.text.encode() + source[self.stop :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return the mutants of a file, in the order of its text."""
    lines = [0]
    for line in source.split(b"\n"):
        lines.append(lines[-1] + len(line) + 1)
    found = []
    for first, node, text, kind in _changes(ast.parse(source)):
        start, stop = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        found.append(Mutant(path, first, node.end_lineno, start, stop, text, kind))
    return sorted(set(found), key=lambda one: (one.start, one.stop, one.kind, one.text))


Change = tuple[ast.AST, str, str]


def _changes(node: ast.AST, first: int = 1) -> Iterator[tuple[int, ast.AST, str, str]]:
    first = node.lineno if isinstance(node, ast.stmt) else first
    for changed, text, kind in _of_expression(node) if isinstance(node, ast.expr) else _of_statement(node):
        yield first, changed, text, kind
    for child in _seen(node):
        yield from _changes(child, first)


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node in which mutants are made."""
    if isinstance(node, (ast.Raise, ast.JoinedStr)) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        yield from (default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None)
        yield from [] if getattr(node, "name", "") in UNSEEN else node.body if isinstance(node.body, list) else [node.body]
    elif isinstance(node, ast.ClassDef):
        yield from node.body
    elif isinstance(node, ast.AnnAssign):
        yield from [node.value] if node.value is not None else []
    elif not (isinstance(node, ast.Call) and _talks(node)) and not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        yield from ast.iter_child_nodes(node)


def _talks(node: ast.Call) -> bool:
    name = _last_name(node.func)
    return name.endswith("Error") or name in TALK


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _of_statement(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass", "statement removed"
    elif isinstance(node, ast.AugAssign):
        yield node, "pass", "statement removed"
        other = {ast.Add: "-=", ast.Sub: "+=", ast.Mult: "/=", ast.Div: "*="}.get(type(node.op))
        if other and not _text(node.value):
            yield node, f"{ast.unparse(node.target)} {other} {ast.unparse(node.value)}", "arithmetic"
    elif isinstance(node, ast.Break):
        yield node, "continue", "loop goes on"
    elif isinstance(node, ast.Continue):
        yield node, "break", "loop ends"
    elif isinstance(node, (ast.If, ast.While)) and isinstance(node.test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.NamedExpr)):
        yield node.test, f"(not ({ast.unparse(node.test)}))", "condition"
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield test, "True", "condition"


def _of_expression(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, f"({ast.unparse(node.left)} {COMPARISONS[type(node.ops[0])]} {ast.unparse(node.comparators[0])})", "comparison"
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            words = [ast.unparse(node.left)]
            for j, (other, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
                words += [COMPARISONS[type(op)] if i == j else _symbol(other), ast.unparse(right)]
            yield node, f"({' '.join(words)})", "comparison"
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not (_text(node.left) or _text(node.right)):
        pattern, parts = ARITHMETIC[type(node.op)], {"a": f"({ast.unparse(node.left)})", "b": f"({ast.unparse(node.right)})"}
        yield node, f"({''.join(parts.get(letter, letter) for letter in pattern)})", "arithmetic"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield node, f"({word.join(f'({ast.unparse(value)})' for value in node.values)})", "and, or"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, f"({ast.unparse(node.operand)})", "condition" if isinstance(node.op, ast.Not) else "arithmetic"
    elif isinstance(node, ast.IfExp):
        yield node.test, f"(not ({ast.unparse(node.test)}))", "condition"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield node, repr(not node.value) if isinstance(node.value, bool) else repr(node.value + 1), "constant"
    elif isinstance(node, ast.Slice):
        for part in (node.lower, node.upper):
            if part is not None and not isinstance(part, ast.Constant):
                yield part, f"({ast.unparse(part)}) + 1", "slice"
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)) and len(node.elts) > 1 and all(isinstance(one, ast.Constant) for one in node.elts):
        left, right = {ast.Tuple: "()", ast.List: "[]", ast.Set: "{}"}[type(node)]
        for i in range(len(node.elts)):
            kept = [ast.unparse(one) for j, one in enumerate(node.elts) if j != i]
            yield node, f"{left}{', '.join(kept)},{right}", "element removed"
    elif isinstance(node, ast.Dict) and node.keys and all(node.keys):
        for i in range(len(node.keys)):
            kept = [f"{ast.unparse(k)}: {ast.unparse(v)}" for j, (k, v) in enumerate(zip(node.keys, node.values, strict=True)) if j != i]
            yield node, f"{{{', '.join(kept)}}}", "element removed"
    elif isinstance(node, ast.Call) and not _talks(node):
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[Change]:
    first = node.args[:2]
    if len(first) == 2 and not any(isinstance(one, ast.Starred) for one in first) and ast.dump(first[0]) != ast.dump(first[1]):
        yield node, ast.unparse(ast.Call(node.func, [first[1], first[0], *node.args[2:]], node.keywords)), "arguments swapped"
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield node, ast.unparse(ast.Call(node.func, node.args, [one for one in node.keywords if one is not keyword])), "argument dropped"
    name = _last_name(node.func)
    if name in NAMES:
        func = ast.Name(NAMES[name]) if isinstance(node.func, ast.Name) else ast.Attribute(node.func.value, NAMES[name])
        yield node, ast.unparse(ast.Call(func, node.args, node.keywords if name != "sorted" else [])), "function"


def _symbol(op: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("a"), [op], [ast.Name("b")]))[2:-2]


def _text(node: ast.expr) -> bool:
    """Return True if the expression is a literal text."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
