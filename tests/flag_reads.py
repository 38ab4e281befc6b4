"""The flags that a program reads, found by the types of its expressions: the attribute of another object that has a flag's name is no read of it.

A check in a `__post_init__` is no read, and neither is a property of the options that nothing reads.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

Flag = tuple[str, str]  # the class of options, and the name of its field or property


class Reads:
    """The flags that a program's sources read of some classes of options.

    Args:
        sources: the text of each module, by its path.
        groups: names of the classes of options.
    """

    def __init__(self, sources: Mapping[Path, str], groups: Iterable[str]):
        trees = [ast.parse(text) for path, text in sources.items()]
        self._groups = frozenset(groups)
        self._bases: dict[str, list[str]] = {}
        self._members: dict[str, dict[str, str]] = defaultdict(dict)  # by class: the class of each attribute
        self._returns: dict[str, str] = {}
        self._found: dict[Flag | None, set[Flag]] = defaultdict(set)  # by the property of the options that reads them; None for all other readers
        classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in classes:
            self._bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and (name := self._named(node.returns)):
                    self._returns[node.name] = name
        for node in classes:
            self._declare_fields(node)
        for node in classes:
            self._declare_own(node)
        for tree in trees:
            self._body(tree.body, {}, None)

    def flags(self) -> set[Flag]:
        """Return the flags that are read directly or through a property that is itself read."""
        found, todo = set(), set(self._found[None])
        while todo:
            found |= todo
            todo = {flag for read in todo for flag in self._found[read]} - found
        return found

    def _named(self, annotation: ast.expr | None) -> str | None:
        """Return the class of this program that an annotation names; None where it names none, or several."""
        names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)] if annotation is not None else []
        known = [name for name in names if name in self._bases]
        return known[0] if len(known) == 1 and set(names) <= {known[0], "None", "tuple", "Iterator"} else None

    def _declare_fields(self, node: ast.ClassDef) -> None:
        """Collect the classes of a class's annotated attributes and of its properties."""
        members = self._members[node.name]
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and (name := self._named(item.annotation)):
                members[item.target.id] = name
            if isinstance(item, ast.FunctionDef) and item.decorator_list and (name := self._named(item.returns)):
                members[item.name] = name

    def _declare_own(self, node: ast.ClassDef) -> None:
        """Collect the classes of the attributes that a class's methods assign to `self`."""
        members = self._members[node.name]
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                names = self._arguments(item, node.name)
                for inner in ast.walk(item):
                    for target, value in _pairs(inner):
                        own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
                        if own and (name := self._class_of(value, names)):
                            members[target.attr] = name

    def _arguments(self, function: ast.FunctionDef, owner: str | None) -> dict[str, str]:
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        names = {one.arg: name for one in arguments if (name := self._named(one.annotation))}
        return names | ({"self": owner} if owner and arguments and arguments[0].arg == "self" else {})

    def _member(self, owner: str | None, attribute: str) -> str | None:
        todo = [owner] if owner else []
        while todo:
            owner = todo.pop()
            if attribute in self._members[owner]:
                return self._members[owner][attribute]
            todo += [base for base in self._bases.get(owner, ()) if base in self._bases]
        return None

    def _class_of(self, node: ast.expr, names: Mapping[str, str]) -> str | None:
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._member(self._class_of(node.value, names), node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "replace" and node.args:
                return self._class_of(node.args[0], names)
            return node.func.id if node.func.id in self._bases else self._returns.get(node.func.id)
        return self._class_of(node.value, names) if isinstance(node, ast.NamedExpr) else None

    def _of_lambdas(self, node: ast.AnnAssign) -> dict[str, str]:
        """Return the classes of the lambdas' arguments, where the assignment's annotation gives them."""
        calls = [one.slice.elts[0] for one in ast.walk(node.annotation) if isinstance(one, ast.Subscript) and ast.unparse(one.value) == "Callable"]
        classes = [self._named(one) for one in calls[0].elts] if calls and isinstance(calls[0], ast.List) else []
        lambdas = [one.args.args for one in ast.walk(node.value) if isinstance(one, ast.Lambda)] if node.value is not None else []
        return {one.arg: name for arguments in lambdas for one, name in zip(arguments, classes, strict=False) if name}

    def _body(self, body: list[ast.stmt], names: dict[str, str], owner: str | None, reader: Flag | None = None) -> None:
        for node in body:
            self._visit(node, names, owner, reader)

    def _visit(self, node: ast.AST, names: dict[str, str], owner: str | None, reader: Flag | None) -> None:
        if isinstance(node, ast.ClassDef):
            return self._body(node.body, names, node.name)
        if isinstance(node, ast.FunctionDef):
            if node.name == "__post_init__":
                return None  # it only checks values
            inside = names | self._arguments(node, owner)
            return self._body(node.body, inside, None, (owner, node.name) if owner in self._groups else reader)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and (group := self._class_of(node.value, names)) in self._groups:
            self._found[reader].add((group, node.attr))
        names = names | self._of_lambdas(node) if isinstance(node, ast.AnnAssign) else names
        for child in ast.iter_child_nodes(node):
            self._visit(child, names, None, reader)
        for target, value in _pairs(node):
            if isinstance(target, ast.Name):
                names.pop(target.id, None)
                if name := self._class_of(value, names):
                    names[target.id] = name
        return None


def _pairs(node: ast.AST) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment with their values."""
    if isinstance(node, ast.NamedExpr):
        yield node.target, node.value
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value
