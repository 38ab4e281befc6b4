"""TensorFlow is set up once for all tests: on the CPU, with few threads, so that a test's cost is its own; files that share models run in turn."""

from pathlib import Path

from utils.runtime import prepare_tensorflow

prepare_tensorflow()

import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402 - after it was prepared
from hypothesis import settings  # noqa: E402
from xdist.scheduler import LoadFileScheduling  # noqa: E402

from tests.left_out import summary  # noqa: E402

tf.config.set_visible_devices([], "GPU")
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(2)

# A run on a busy machine is slow now and then; a test that is too slow is what pytest-timeout is for.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")

# What `trained` of tests/distributed/conftest.py gives, the first to ask for makes while all others wait.
TRAINED = {"test_equality.py", "test_traffic.py", "test_updates.py"}
# Files of minutes, begun first, so that none is alone at the end.
LONG = (
    "test_equality",
    "test_gpu_first_run",
    "test_dlrm",
    "test_elastic",
    "test_launcher",
    "test_failures",
    "test_campaign",
    "test_fuzz",
    "test_benchmarks",
)


class ByFile(LoadFileScheduling):
    """A file's tests run in one process, and so do those of the files that share models."""

    def _split_scope(self, nodeid):
        scope = super()._split_scope(nodeid)
        return "trained" if Path(scope).name in TRAINED else scope


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # by the number of tests, which says little


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also what is marked slow: a run of each benchmark")


def pytest_collection_modifyitems(config, items):
    for item in () if config.getoption("long") else items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: ./scripts/test --long runs it"))
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter):
    """One loud line about what was left out because something is not installed."""
    reports = terminalreporter.stats.get("skipped", ())
    if line := summary([str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple | list)]):
        terminalreporter.write_line(line, red=True, bold=True)
