"""Set-up of TensorFlow, once for all tests, on the CPU and with few threads, so that tests that run at the same time slow each other little."""

import functools
import gc
import os
import random
from pathlib import Path

from utils.runtime import prepare_tensorflow

# Without AVX-512, oneDNN's kernel rounds a row's products by its place in a block of six rows, so bits depend on the number of workers
# (docs/training.md).
if "avx512f" not in Path("/proc/cpuinfo").read_text():
    os.environ.setdefault("TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL", "0")
prepare_tensorflow()

import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402 - after it was prepared
from hypothesis import settings  # noqa: E402
from xdist.scheduler import LoadFileScheduling  # noqa: E402

from tests import left_out  # noqa: E402
from tests.distributed import resident  # noqa: E402
from tests.durations import Durations, leave_out_costly  # noqa: E402

tf.config.set_visible_devices([], "GPU")
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(2)

# Hypothesis's deadline would fail tests on a busy machine; pytest-timeout ends a test that is too slow.
settings.register_profile("repository", deadline=None)
settings.register_profile("long", deadline=None, max_examples=300)
settings.load_profile("repository")

# Files that run in one process, by the name of what they share, which several processes would make several times, or the first while the others wait:
# the trainings of tests/distributed/conftest.py, and the models of tests/combinations; besides, one session of Spark (see `ByFile`).
SHARED = dict.fromkeys(("test_equality.py", "test_traffic.py", "test_updates.py"), "trained")
SHARED |= dict.fromkeys(("test_pairs.py", "test_combined_growth.py"), "combined")
# Files that take minutes start first, so that none of them runs alone at the end.
LONG = (
    "test_equality",
    "test_gpu_first_run",
    "test_dlrm",
    "test_elastic",
    "test_launcher",
    "test_failures",
    "test_campaign",
    "test_curves",
    "test_criteo_spark",
    "test_fuzz",
    "test_benchmarks",
)


class ByFile(LoadFileScheduling):
    """A scheduler that runs a file's tests in one process, and those of all files that share something, too."""

    def _split_scope(self, nodeid):
        scope = super()._split_scope(nodeid)
        return "spark" if self._on_spark(scope) else SHARED.get(Path(scope).name, scope)

    @functools.cache  # noqa: B019 - lives as long as the run
    def _on_spark(self, scope):
        text = (self.config.rootpath / scope).read_text()
        return "one_spark" in text and "Cluster" not in text


def pytest_configure(config):
    left_out.quick = config.getoption("quick")
    config.pluginmanager.register(Durations(config))
    if not hasattr(config, "workerinput"):  # the process that ends last; pytest-xdist's inherit its environment
        resident.begin()
    if config.getoption("long"):
        settings.load_profile("long")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # would sort files by their number of tests, which says little about their time


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run tests marked slow, as a run of each benchmark, and draw more cases")
    parser.addoption(
        "--quick", action="store_true", help="leave out tests that start workers, servers, Spark or a browser, or took long in the last run"
    )
    parser.addoption("--order", type=int, metavar="SEED", help="run the files, and the tests of each, in a random order")


def pytest_collection_modifyitems(config, items):
    if config.getoption("quick"):
        leave_out_costly(config, items)
    for item in () if config.getoption("long") else items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: ./scripts/test --long runs it"))
    if (seed := config.getoption("order")) is not None:
        draw = random.Random(seed)
        files = {path: draw.random() for path in dict.fromkeys(item.path for item in items)}
        draw.shuffle(items)
        items.sort(key=lambda item: files[item.path])
    else:
        items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish():
    gc.freeze()  # what has been imported and collected stays, so the garbage collector need not look through it again and again


@pytest.fixture(scope="session")
def spark_installed():
    """Skip a test where Spark is not installed."""
    from tests.preproc.spark.spark_cluster import spark_missing

    left_out.starts("Spark")
    if why := spark_missing():
        pytest.skip(why)


def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter):
    """Print one loud line about tests that were left out because something is not installed."""
    reports = terminalreporter.stats.get("skipped", ())
    if line := left_out.summary([str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple | list)]):
        terminalreporter.write_line(line, red=True, bold=True)
