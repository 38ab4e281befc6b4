"""Checks of the house rules that a tool can check: allowed imports, no import cycles, size limits, how docstrings open.

Each violation is printed on a line. CONTRIBUTING.md describes the rules.
"""

import argparse
import ast
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MAX_FILE, MAX_CLASS, MAX_PARAMETERS = 400, 150, 8  # lines, lines, parameters without self
CRUMB = 60  # lines; a smaller file that only one other file uses may belong in that file
DOCUMENT = "docs/architecture.md"
LONGEST, MAX_ROAD = {"a flag": 9, "a request": 8}, 38  # maximum files of these journeys; of any other journey
ENTRY = ("dlrm", "dcnv2", "fm", "deepfm", "finalmlp", "wide_and_deep", "main")
_DATA = (
    "dataloading.criteo_rows",
    "dataloading.csv_files",
    "dataloading.tfrecord",
    "dataloading.parquet",
    "dataloading.synthetic",
    "dataloading.store",
)
_BELOW_COMMANDS = {"preproc.spark", "preproc.shared", "preproc.reading"}
# Small files that stay separate: each has its own subject, or is imported in places where its user must not be (before TensorFlow, by an executor's
# task).
WALLS = frozenset(
    {
        "benchmarks/tf_data.py",
        "dataloading/bayes.py",
        "model/embedding/whole.py",
        "preproc/spark/merged_counts.py",
        "preproc/table/idle.py",
        "run/announcement.py",
        "run/elastic/diagnosis.py",
        "run/evaluate.py",
        "run/modes.py",
        "run/plan.py",
        "run/predict.py",
        "run/profile_folder.py",
        "run/stored_synthetic.py",
        "served/stalls.py",
        "serving/server_log.py",
        "training/optimizers/adam.py",
        "training/optimizers/ftrl.py",
        "training/optimizers/legacy_rmsprop.py",
        "training/profile.py",
        "training/single_steps.py",
        "utils/config/per_feature.py",
        "utils/config/placement.py",
    }
)
# A room is a folder or a subfolder (`utils.checkpoint`). Permission to import a room of another top folder includes the rooms in it. Within one top
# folder, each room is listed, and the folder's own name stands for the files that are in no subfolder.
MAY_IMPORT = {
    "dlrm": {"run", "utils"},
    "dcnv2": {"dlrm", "utils"},
    "fm": {"dlrm", "utils"},
    "deepfm": {"dlrm", "utils"},
    "finalmlp": {"dlrm", "utils"},
    "wide_and_deep": {"dlrm", "utils"},
    "main": {"wide_and_deep", "utils"},
    "utils": {"utils"},
    "utils.metrics": {"utils.metrics"},
    "utils.encoding": {"utils.encoding", "utils"},
    "utils.config": {"utils.config", "utils.metrics", "utils"},
    "utils.dialects": {"utils.dialects", "utils.config", "utils"},
    "utils.cluster": {"utils.cluster", "utils"},
    "utils.checkpoint": {"utils.checkpoint", "utils.cluster", "utils.config", "utils"},
    "dataloading": {"dataloading", *_DATA, "utils"},
    **{room: {room, "dataloading", "utils"} for room in _DATA},
    "model": {"model", "utils"},
    "training": {"training", "model", "utils"},
    "served": {"served", "dlrm", "serving", "utils"},
    "serving": {"serving", "model", "dataloading", "utils"},
    "run": {"run", "report", "serving", "training", "model", "preproc", "dataloading", "utils"},
    "run.elastic": {"run.elastic", "utils"},
    "deployment": {"deployment", "run", "serving", "utils"},
    "report": {"report", "report.log", "report.page", "report.rows", "utils"},
    "report.log": {"report.log", "utils"},
    "report.rows": {"report.rows", "dataloading", "utils"},
    "report.page": {"report.page", "report.log", "report.rows", "utils"},
    "report.tensorboard": {"report.tensorboard", "report.log", "utils"},
    "preproc": {"preproc", "preproc.criteo", "preproc.nvidia", "dataloading", "utils"},
    "preproc.reading": {"preproc.reading", "dataloading", "utils"},
    "preproc.shared": {"preproc.shared", "preproc.reading", "dataloading", "utils"},
    "preproc.spark": {"preproc.spark", "preproc.shared", "utils"},
    **{f"preproc.{command}": {f"preproc.{command}", *_BELOW_COMMANDS, "dataloading", "utils"} for command in ("criteo", "table", "outbrain")},
    "preproc.nvidia": {"preproc.nvidia", "preproc.outbrain", "dataloading", "utils"},
    "benchmarks": {"benchmarks", "run", "serving", "training", "model", "preproc", "dataloading", "utils", "dlrm"},
    "scripts": set(),
}
NOT_THE_APPLICATION = ("benchmarks", "scripts")
# Modules that exports of older commits import by name: such a file may import the room, and this import is not part of a cycle.
KEPT_NAMES = {"serving.backend": "served"}
OPENING = re.compile(r"(What|Which|Whether|Where|How)\b")  # no docstring begins so: it says what the thing is or does
HOROVOD = ("utils/distributed.py", "scripts/prove_install.py", "scripts/horovodrun.py")  # the files that may import it


def violations(root: Path) -> Iterator[str]:
    """Yield a line for each violated rule."""
    files, trees, graph = read(root)
    for module, tree in trees.items():
        name, room = str(files[module].relative_to(root)), room_of(module)
        for other in sorted({room_of(target) for target in graph[module]}):
            if not {other, *([] if _top(other) == _top(room) else [_top(other)])} & MAY_IMPORT[room]:
                yield f"{name}: {room} must not import {other}"
        if name not in HOROVOD and any(_top(target) == "horovod" for target in names(tree)):
            yield f"{name}: only {HOROVOD[0]} imports horovod"
        if _top(room) not in NOT_THE_APPLICATION:
            yield from too_large(name, files[module], tree)
    for path in (*files.values(), *tests(root)):
        yield from questions(str(path.relative_to(root)), ast.parse(path.read_text()))
    yield from (f"import cycle: {' -> '.join(circle)}" for circle in circles(graph))
    yield from (f"include cycle: {' -> '.join(circle)}" for circle in circles(includes(root / "ops")))


def crumbs(root: Path) -> Iterator[str]:
    """Yield a line for each small file whose only user is another file of its room, because it may belong in that file."""
    files, _, graph = read(root)
    for module, path in files.items():
        lines, users = len(path.read_text().splitlines()), [user for user, targets in graph.items() if module in targets and user != module]
        if path.name in ("__init__.py", "__main__.py") or str(path.relative_to(root)) in WALLS:
            continue
        if lines < CRUMB and len(users) == 1 and room_of(users[0]) == room_of(module):
            yield f"{path.relative_to(root)}: {lines} lines, used only by {files[users[0]].relative_to(root)}; move its content there?"


def read(root: Path) -> tuple[dict[str, Path], dict[str, ast.Module], dict[str, set[str]]]:
    """Return the file of each module, its syntax tree, and the modules that it imports."""
    files = {module_of(path, root): path for path in sources(root)}
    trees = {module: ast.parse(path.read_text()) for module, path in files.items()}
    graph = {module: imported(tree, files) for module, tree in trees.items()}
    for module in KEPT_NAMES.keys() & graph.keys():
        graph[module] = {target for target in graph[module] if _top(target) != KEPT_NAMES[module]}
    return files, trees, graph


def room_of(module: str) -> str:
    """Return the room of a module, the longest match: `utils.checkpoint.reading` -> `utils.checkpoint`."""
    parts = module.split(".")
    return next(room for i in range(len(parts), 0, -1) if (room := ".".join(parts[:i])) in MAY_IMPORT)


def _top(name: str) -> str:
    return name.split(".")[0]


def sources(root: Path) -> list[Path]:
    """Return the files that the rules apply to."""
    found = [root / f"{name}.py" for name in ENTRY] + [path for room in MAY_IMPORT for path in (root / _top(room)).rglob("*.py")]
    return sorted({path for path in found if path.is_file() and "__pycache__" not in path.parts})


def tests(root: Path) -> list[Path]:
    """Return the files of the tests."""
    return sorted(path for path in (root / "tests").rglob("*.py") if "__pycache__" not in path.parts)


def module_of(path: Path, root: Path) -> str:
    """Return the name of a module: `utils/errors.py` -> `utils.errors`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names(tree: ast.AST) -> set[str]:
    """Return the names that a file imports, anywhere in it, by a statement or by `import_module` with a literal name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module" and node.args:
            found |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    return found


def imported(tree: ast.AST, files: Mapping[str, Path]) -> set[str]:
    """Return the modules of this project that a file imports: for each imported name, its longest prefix that is a module."""
    found = set()
    for name in names(tree):
        parts = name.split(".")
        found |= {next((".".join(parts[:i]) for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in files), None)}
    return found - {None}


def too_large(name: str, path: Path, tree: ast.AST) -> Iterator[str]:
    """Yield a line for each file, class and function beyond the limits."""
    lines = len(path.read_text().splitlines())
    if lines > MAX_FILE:
        yield f"{name}: {lines} lines; expected at most {MAX_FILE}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (size := node.end_lineno - node.lineno + 1) > MAX_CLASS:
            yield f"{name}: class {node.name} has {size} lines; expected at most {MAX_CLASS}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = len(given) - bool(given and given[0].arg in ("self", "cls"))
            if count > MAX_PARAMETERS:
                yield f"{name}: {node.name} has {count} parameters; expected at most {MAX_PARAMETERS}"


def questions(name: str, tree: ast.AST) -> Iterator[str]:
    """Yield a line for each docstring that opens with a question word."""
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (found := OPENING.match(ast.get_docstring(node) or "")):
            yield f"{name}:{node.body[0].lineno}: the docstring opens with {found.group(1)}; say what it is (a noun), or what it does (Return …)"


def includes(folder: Path) -> dict[str, set[str]]:
    """Return, for each C++ unit (a source and its header), the other units that it includes."""
    units: dict[str, set[str]] = {}
    for path in (*folder.glob("*.cc"), *folder.glob("*.h")):
        found = {Path(name).stem for name in re.findall(r'^#include "([^"/]+)"', path.read_text(), re.M)}
        units.setdefault(path.stem, set()).update(found - {path.stem})
    return units


def journeys(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the name of each journey in docs/architecture.md, the files on its road, and its faults.

    The road consists of the files that paragraphs with arrows name outside parentheses, and of the files that connect them: one file imports the
    other, directly or through further files, or a third file imports both. Files named in parentheses, or in paragraphs without arrows, are helpers
    beside the road.
    """
    files, _, graph = read(root)
    names = {str(path.relative_to(root)): module for module, path in files.items()}
    document = root / DOCUMENT
    for title, text in re.findall(r"^## The journey of (.*)\n\n((?:(?!^## ).*\n)*)", document.read_text() if document.is_file() else "", re.M):
        road, faults = [], [f"{DOCUMENT}: the journey of {title}: no file {name}" for name in _named(text) if not _resolved(name, [], names)]
        stops: list[str] = []
        for name in _named(re.sub(r"\([^()]*\)", "", "".join(part for part in text.split("\n\n") if "→" in part))):
            if found := _resolved(name, stops, names):
                stops.append(found)
        for stop in stops:
            between = [str(files[module].relative_to(root)) for module in _way(graph, [names[one] for one in road], names[stop])]
            road += [name for name in (*between, stop) if name not in road]
        if len(road) > (most := LONGEST.get(title, MAX_ROAD)):
            faults.append(f"{DOCUMENT}: the journey of {title} passes {len(road)} files; expected at most {most}")
        yield title, road, faults


def _named(text: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py)`", text)


def _resolved(name: str, before: Sequence[str], names: Mapping[str, str]) -> str | None:
    """Return the file of a name; without a folder, it is searched in the folders of the files named before, latest first, then in all folders."""
    near = [str(Path(other).parent / name) for other in reversed(before)]
    found = next((path for path in (name, *near) if path in names), None)
    return found or next((path for path in sorted(names) if path.endswith(f"/{name}")), None)


def _way(graph: Mapping[str, set[str]], visited: Sequence[str], target: str) -> list[str]:
    """Return the modules between the last visited module and `target`; empty if one imports the other, or if nothing connects them."""
    if not visited:
        return []
    here = visited[-1]
    ways = [way for one, other in ((here, target), (target, here)) if (way := _shortest(graph, one, other)) is not None]
    callers = sorted(
        (len(targets), module) for module, targets in graph.items() if {here, target} <= targets and _top(module) not in NOT_THE_APPLICATION
    )
    if callers and all(len(way) > 1 for way in ways):
        return [callers[0][1]]
    return min(ways, key=len, default=[])


def _shortest(graph: Mapping[str, set[str]], start: str, end: str) -> list[str] | None:
    """Return the modules on the shortest chain of imports from `start` to `end`, without both; None if there is no chain."""
    ways, seen = deque([[start]]), {start}
    while ways:
        way = ways.popleft()
        if way[-1] == end:
            return way[1:-1]
        for target in sorted(graph[way[-1]] - seen):
            seen.add(target)
            ways.append([*way, target])
    return None


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the cycles of a graph that a depth-first search finds: one for each edge back to an open node."""
    found, state, trail = [], {}, []

    def visit(node: str) -> None:
        state[node] = "open"
        trail.append(node)
        for target in sorted(graph.get(node, ())):
            if state.get(target) == "open" and target != node:
                found.append([*trail[trail.index(target) :], target])
            elif target not in state:
                visit(target)
        trail.pop()
        state[node] = "done"

    for node in sorted(graph):
        if node not in state:
            visit(node)
    return found


def main() -> int:
    """Print the violations, and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="house.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--journeys", action="store_true", help=f"print the files of each journey in {DOCUMENT}")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1], help="the project's folder (default: %(default)s)")
    given = parser.parse_args()
    root = given.root
    if not sources(root):
        sys.exit(f"house.py: error: {root}: {'holds none of the project' if root.is_dir() else 'no such folder'}; expected the project's folder")
    lines = list(violations(root))
    for title, road, faults in journeys(root):
        lines += faults
        if given.journeys:
            print(f"{title}: {len(road)} files in {len({room_of(module_of(root / name, root)) for name in road})} rooms", *road, sep="\n  ")
    for line in crumbs(root):
        print(f"house: warning: {line}", file=sys.stderr)
    print(*(f"house: {line}" for line in lines), sep="\n", end="\n" if lines else "", file=sys.stderr)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
