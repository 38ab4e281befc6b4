"""The cost of each test, in seconds by the clock and of the processors, children included; every run keeps it in `.pytest_cache/d/durations.json`.

    python tests/durations.py [FILE [BEFORE]]    # the tests above 20 s, each with its reason (the mark `costly`), then the folders

A fixture counts for the test that first asks for it. Processes that outlive their test, such as servers, are in the control group's sum only.
"""

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

KEPT, LONG_S = "durations", 20.0
QUICK_S = 0.5  # processor seconds of a test that `--quick` runs
_NAMED = "DLRM_TESTS_ARE_NAMED"  # an environment variable: the words of the run name what to run
_CPU_S = pytest.StashKey[float]()
_USAGE = ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpuacct/cpuacct.usage")  # of version 2 in microseconds, of version 1 in nanoseconds


def group_cpu_s() -> float | None:
    """Return the processor seconds of this control group so far, with all that has ended in it; None where the system does not say."""
    first, second = map(Path, _USAGE)
    try:
        if first.exists():
            return int(first.read_text().split()[1]) / 1e6
        return int(second.read_text()) / 1e9
    except OSError:
        return None


def _spent() -> float:
    times = os.times()
    resident = sys.modules.get("tests.distributed.resident")
    own = times.user + times.system + times.children_user + times.children_system
    return own + (resident.spent_s if resident else 0.0)


class Durations:
    """The pytest plugin that measures; with several processes, that which reports writes what all of them measured."""

    def __init__(self, config):
        self._config, self._tests = config, defaultdict(lambda: {"wall_s": 0.0, "cpu_s": 0.0, "why": ""})
        self._began, self._before = time.monotonic(), group_cpu_s()
        if not hasattr(config, "workerinput"):  # the processes of pytest-xdist inherit it, to whom all tests are named
            os.environ[_NAMED] = "1" if config.args_source.name == "ARGS" else ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        """Measure the fixtures of a test."""
        return (yield from self._measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        """Measure a test."""
        return (yield from self._measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        """Measure the ends of fixtures."""
        return (yield from self._measured(item))

    def _measured(self, item):
        before = _spent()
        try:
            return (yield)
        finally:
            item.stash[_CPU_S] = _spent() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        """Send what was measured with the report, from whichever process."""
        report = yield
        mark = item.get_closest_marker("costly")
        report.cost = [item.stash.get(_CPU_S, 0.0), mark.args[0] if mark else ""]
        return report

    def pytest_runtest_logreport(self, report):
        """Add up the phases of a test."""
        if cost := getattr(report, "cost", None):
            test = self._tests[report.nodeid]
            test["wall_s"] += report.duration
            test["cpu_s"] += cost[0]
            test["why"] = cost[1]

    def pytest_sessionfinish(self):
        """Write the file."""
        if not self._tests or hasattr(self._config, "workerinput"):
            return
        group = group_cpu_s()
        whole = {
            "wall_s": time.monotonic() - self._began,
            "group_cpu_s": None if group is None or self._before is None else group - self._before,
            "tests": self._tests,
        }
        if self._config.pluginmanager.hasplugin("cacheprovider") and not self._config.getoption("quick", False):
            _file(self._config).write_text(json.dumps(whole, indent=0))


def _file(config) -> Path:
    return Path(config.cache.mkdir(KEPT)).parent / f"{KEPT}.json"


def leave_out_costly(config, items) -> None:
    """Skip the tests that took over half a processor second in the last run without `--quick`, unless the words name what to run."""
    if os.environ[_NAMED] or not config.pluginmanager.hasplugin("cacheprovider") or not _file(config).exists():
        return
    kept = json.loads(_file(config).read_text())["tests"]
    for item in items:
        if (spent := kept.get(item.nodeid, {}).get("cpu_s", 0.0)) > QUICK_S:
            item.add_marker(pytest.mark.skip(reason=f"--quick: took {spent:.1f} s of a processor in the last run"))


def table(kept: Mapping, before: Mapping | None = None) -> Iterator[str]:
    """Yield the lines of a run's table: the long tests with their reasons, the folders, the sums; beside them the folders of a run before."""
    tests, runs = kept["tests"], [kept, *([before] if before else [])]
    for name, test in sorted(tests.items(), key=lambda pair: -max(pair[1]["wall_s"], pair[1]["cpu_s"])):
        if max(test["wall_s"], test["cpu_s"]) > LONG_S:
            yield f"{test['wall_s']:7.1f} s {test['cpu_s']:7.1f} CPU s  {name}: {test['why'] or 'NO REASON GIVEN'}"
    yield "| folder |" + " tests | seconds | CPU seconds |" + " before: tests | seconds | CPU seconds |" * (len(runs) - 1)
    yield "|---|" + "---:|---:|---:|" * len(runs)
    sums = [_by_folder(run["tests"]) for run in runs]
    for folder in sorted(set().union(*sums), key=lambda folder: -sums[-1][folder]["cpu_s"]):
        yield f"| `{folder}` | {' | '.join(_figures(some[folder]) for some in sums)} |"
    yield f"| all | {' | '.join(_figures(sum(some.values(), Counter())) for some in sums)} |"
    for run in runs:
        group = run["group_cpu_s"]
        yield f"by the clock: {run['wall_s']:.0f} s; of the control group: {'unknown' if group is None else format(group, '.0f') + ' CPU s'}"


def _by_folder(tests: Mapping[str, Mapping]) -> dict[str, Counter]:
    sums: dict[str, Counter] = defaultdict(Counter)
    for name, test in tests.items():
        folder = "/".join(name.split("::")[0].split("/")[:-1][:2])
        sums[folder].update(tests=1, wall_s=test["wall_s"], cpu_s=test["cpu_s"])
    return sums


def _figures(sums: Counter) -> str:
    return f"{sums['tests']} | {sums['wall_s']:.0f} | {sums['cpu_s']:.0f}"


if __name__ == "__main__":
    paths = sys.argv[1:] or [Path(__file__).parents[1] / ".pytest_cache/d/durations.json"]
    print("\n".join(table(*(json.loads(Path(path).read_text()) for path in paths[:2]))))
