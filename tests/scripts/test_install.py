"""Tests of scripts/install with stubs for all programs it calls: their arguments, and its failures."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """#!/bin/bash
echo "$(basename "$0") $*" >>"$CALLS"
for word in "$@"; do
    case $word in *requirements.txt) cp "$word" "$CALLS.requirements" ;; esac
    if [ "${before:-}" = -w ]; then touch "$word/horovod-1-any.whl"; fi
    before=$word
done
case "$*" in
    *version_info*) echo "$VERSION" ;;
    *sysconfig*) echo "$SITE" ;;
    ops/build) exit "${BUILD:-0}" ;;
    *"-m serving."*) exit "${CACHE_FILLED:-0}" ;;
    *requirements-serving.txt*) exit "${CLIENTS:-0}" ;;
    *"import dllogger"*) exit "${DLLOGGER:-1}" ;;
    *"dllogger @"*) exec sleep "${DLLOGGER_SECONDS:-0}" ;;
esac
"""


class Install:
    """A copy of the files that scripts/install reads, with stubs of programs that record their arguments."""

    def __init__(self, folder):
        self.folder, self.calls = folder / "clone", folder / "calls"
        files = ("scripts/install", "scripts/prove_install.py", "scripts/horovod_shim", "requirements.txt", "requirements-dev.txt", "ops/build")
        for path in (*files, "requirements-spark.txt", "requirements-serving.txt", "requirements-optional.txt", "serving/triton_install.py"):
            copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / path, self.folder / path)
        for path in ("clone/.venv/bin/python", "clone/.venv/bin/horovodrun", "bin/dpkg-query"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(PROGRAM)
            (folder / path).chmod(0o755)
        (folder / "bin/dpkg-query").write_text("#!/bin/bash\necho install ok installed\n")
        for path in ("site/nvidia/nccl/lib/libnccl.so.2", "cuda/include/cuda_runtime.h"):  # read on a machine with nvcc
            (folder / path).parent.mkdir(parents=True)
            (folder / path).touch()
        version = "{}.{}".format(*sys.version_info)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "VERSION": version,
            "SITE": str(folder / "site"),
            "HOROVOD_CUDA_HOME": str(folder / "cuda"),
            "DLRM_PYTHON": getattr(sys, "_base_executable", sys.executable),
            "DLRM_DEVICE": "cpu",
            "DLRM_CACHE_DIR": str(folder / "cache"),
        }

    def run(self, *flags, **environment):
        self.calls.write_text("")
        return subprocess.run(
            ["bash", "scripts/install", *flags], cwd=self.folder, env=self.environment | environment, capture_output=True, text=True, timeout=240
        )

    def requirements(self):
        return Path(f"{self.calls}.requirements").read_text()

    @property
    def done(self):
        return (self.folder / ".venv/installed").exists()


@pytest.fixture
def install(tmp_path):
    return Install(tmp_path)


@pytest.mark.parametrize(("device", "package"), [("cpu", "tensorflow-cpu==9.8.7"), ("gpu", "tensorflow[and-cuda]==9.8.7")])
def test_versions_are_taken_from_requirements_txt(install, device, package):
    path = install.folder / "requirements.txt"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("tensorflow==", "horovod=="))]
    path.write_text("\n".join(["tensorflow==9.8.7  # a word", "horovod==6.5.4", *lines, ""]))
    result = install.run(DLRM_DEVICE=device)
    assert result.returncode == 0, result.stderr
    pip = next(line for line in install.calls.read_text().splitlines() if "pip" in line and package in line)
    assert "requirements-dev.txt" in pip
    assert "numpy==" in install.requirements() and "mpi4py==" in install.requirements()
    assert not any(line.startswith(("tensorflow", "horovod")) for line in install.requirements().splitlines())
    assert f"{package}, Horovod 6.5.4" in result.stderr


def test_a_missing_pin_is_named(install):
    path = install.folder / "requirements.txt"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith("horovod==")))
    result = install.run()
    assert result.returncode != 0 and "requirements.txt pins no horovod" in result.stderr


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_operations_that_do_not_compile_fail_the_install(install, again):
    if again:
        assert install.run().returncode == 0
    result = install.run(BUILD="1")
    assert result.returncode != 0
    assert "could not be compiled" in result.stderr and "DLRM_NATIVE_OPS=0" in result.stderr
    assert install.done == again


def test_operations_are_left_out_only_on_request(install):
    result = install.run(BUILD="1", DLRM_NATIVE_OPS="0")
    assert result.returncode == 0 and install.done
    assert "ops/build" not in install.calls.read_text()
    assert "DLRM_NATIVE_OPS=0" in result.stderr  # the switched-off build is reported
    result = install.run(BUILD="1")
    assert result.returncode != 0, "the next install builds them"


def test_a_second_run_installs_nothing(install):
    assert install.run().returncode == 0
    result = install.run()
    assert result.returncode == 0 and "up to date" in result.stderr
    assert "pip" not in install.calls.read_text() and "ops/build" in install.calls.read_text()


def test_files_in_use_are_replaced_atomically_or_left_alone(install):
    """A horovodrun started during an install runs the whole old or the whole new program."""
    program, path = install.folder / ".venv/bin/horovodrun", install.calls.with_name("site") / "dlrm_tf2.pth"
    path.write_text("another clone\n")
    with program.open() as old_program, path.open() as old_path:
        assert install.run().returncode == 0
        assert old_program.read() == PROGRAM and old_path.read() == "another clone\n"
    assert "scripts/horovodrun.py" in program.read_text() and os.access(program, os.X_OK)
    assert path.read_text() == f"{install.folder}\n"
    before = [(one.stat().st_ino, one.stat().st_mtime_ns) for one in (program, path)]
    assert install.run().returncode == 0
    assert [(one.stat().st_ino, one.stat().st_mtime_ns) for one in (program, path)] == before
    assert [one.name for folder in (program.parent, path.parent) for one in folder.glob("*.[0-9]*")] == []


def test_clones_sharing_a_cache_write_separate_wheels(install):
    copy = install.calls.with_name("bin") / "cp"
    copy.write_text('#!/bin/bash\necho "cp $*" >>"$CALLS"\nexec /bin/cp "$@"\n')
    copy.chmod(0o755)
    written = []
    for _ in range(2):
        shutil.rmtree(install.calls.with_name("cache"), ignore_errors=True)
        (install.folder / ".venv/installed").unlink(missing_ok=True)
        assert install.run().returncode == 0
        written += [line.split()[-1] for line in install.calls.read_text().splitlines() if line.startswith("cp ") and ".whl" in line]
    assert len(set(written)) == 2
    assert [one.name for one in install.calls.with_name("cache").rglob("horovod-*")] == ["horovod-1-any.whl"]


def java(install, version):
    path = install.calls.with_name("bin") / "java"
    path.write_text(f"#!/bin/bash\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)


def test_spark_is_installed_once_and_only_on_request(install):
    java(install, "17.0.15")
    assert install.run("--spark").returncode == 0
    assert sum("requirements-spark.txt" in line for line in install.calls.read_text().splitlines()) == 1
    for flags in (("--spark",), ()):
        result = install.run(*flags)
        assert result.returncode == 0 and "up to date" in result.stderr and "pip" not in install.calls.read_text()
    result = install.run("--sparks")
    assert result.returncode != 0 and "expected --spark, --serving, --trackers, --browser or nothing" in result.stderr


@pytest.mark.parametrize(("version", "wanted"), [("1.8.0_392", True), ("11.0.2", True), ("17", False), ("21.0.1", False)])
def test_spark_requires_java_17(install, version, wanted):
    """An install for Spark by a user without root rights names the command that installs Java 17 where it is missing."""
    java(install, version)
    for name, script in (("dpkg-query", "case $* in *openjdk*) ;; *) echo install ok installed ;; esac"), ("id", "echo 1000")):
        path = install.calls.with_name("bin") / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
    result = install.run("--spark")
    assert (result.returncode != 0) == wanted
    assert ("apt-get install -y --no-install-recommends openjdk-17-jre-headless" in result.stderr) == wanted
    assert install.run().returncode == 0  # Java is not asked for without --spark


def test_environment_of_trackers_is_made_once_and_only_on_request(install):
    """The folder is in the cache, named by the pins; a link to it is in .venv. Here it is made for real, of no packages."""
    (install.folder / "requirements-trackers.txt").write_text("# nothing\n")
    link = install.folder / ".venv/trackers"
    assert install.run().returncode == 0 and not link.is_symlink()
    result = install.run("--trackers")
    assert result.returncode == 0 and "installing TensorBoard" in result.stderr, result.stderr
    first = link.resolve()
    assert first.parent.name == "cache" and subprocess.run([link / "bin/python", "-c", ""], timeout=240).returncode == 0
    result = install.run("--trackers")
    assert result.returncode == 0 and "installing" not in result.stderr
    (install.folder / "requirements-trackers.txt").write_text("# other pins\nno such package\n")
    result = install.run("--trackers", PIP_NO_INDEX="1")
    assert result.returncode == 0 and "NOT INSTALLED: requirements-trackers.txt" in result.stderr and link.resolve() == first
    assert install.run("--trackers", PIP_NO_INDEX="1", CI="true").returncode == 1


@pytest.mark.parametrize("browser", ["chromium", "google-chrome", None])
def test_browser_is_a_system_package_where_there_is_none(install, browser):
    """An install for tests of reports by a user without root rights names the command that installs Chromium, unless there is such a browser."""
    links = install.calls.with_name("links")  # the programs of this machine without its browsers
    links.mkdir()
    for folder in reversed(os.environ["PATH"].split(":")):
        for program in Path(folder).glob("*"):
            if not program.name.startswith(("chrom", "google-chrome")):
                (links / program.name).unlink(missing_ok=True)
                (links / program.name).symlink_to(program)
    stubs = install.calls.with_name("bin")
    scripts = {"dpkg-query": "case $* in *chromium*) ;; *) echo install ok installed ;; esac", "id": "echo 1000"}
    for name, script in {**scripts, **({browser: ""} if browser else {})}.items():
        (stubs / name).write_text(f"#!/bin/bash\n{script}\n")
        (stubs / name).chmod(0o755)
    result = install.run("--browser", PATH=f"{stubs}:{links}")
    assert (result.returncode == 0) == (browser is not None)
    assert ("apt-get install -y --no-install-recommends chromium\n" in result.stderr) == (browser is None)
    assert install.run(PATH=f"{stubs}:{links}").returncode == 0  # no browser is asked for without --browser
    (stubs / "os-release").write_text('NAME="Ubuntu"\nID=ubuntu\n')
    result = install.run("--browser", PATH=f"{stubs}:{links}", OS_RELEASE=str(stubs / "os-release"))
    assert result.returncode == 0 and ("a snap only" in result.stderr) == (browser is None)


def installed_for_serving(install):
    """Return the modules of serving, and requirements-serving.txt, that Python was called with."""
    lines = install.calls.read_text().splitlines()
    return [word for line in lines for word in line.split() if word.startswith("serving.") or word == "requirements-serving.txt"]


def test_export_environment_is_always_made_and_serving_installed_once_on_request(install):
    assert install.run().returncode == 0
    assert installed_for_serving(install) == ["serving.stub_environment"]
    assert install.run("--serving").returncode == 0
    assert installed_for_serving(install) == ["serving.triton_install", "requirements-serving.txt"]
    result = install.run("--serving")
    assert result.returncode == 0 and "up to date" in result.stderr
    assert installed_for_serving(install) == ["serving.triton_install"] and "pip" not in install.calls.read_text()
    (install.folder / "requirements-serving.txt").write_text("onnx==9.8.7\n")
    assert install.run("--serving").returncode == 0
    assert "requirements-serving.txt" in installed_for_serving(install)


@pytest.mark.parametrize("part", ["CACHE_FILLED", "CLIENTS"])
def test_failed_serving_installation_is_a_warning_and_an_error_under_ci(install, part):
    result = install.run("--serving", **{part: "1"})
    assert result.returncode == 0 and install.done and result.stderr.count("NOT INSTALLED") == 1
    assert (install.folder / ".venv/installed-serving").exists() == (part != "CLIENTS")
    result = install.run("--serving", CI="true", **{part: "1"})
    assert result.returncode == 1 and "(see above)" in result.stderr and "up to date" not in result.stderr
    result = install.run("--serving", CI="true")  # the next install does what is missing
    assert result.returncode == 0 and (install.folder / ".venv/installed-serving").exists()


def test_serving_packages_are_checked_again_after_other_packages_changed(install):
    assert install.run("--serving").returncode == 0
    with (install.folder / "requirements.txt").open("a") as file:
        file.write("# changed\n")
    assert install.run().returncode == 0
    assert install.run("--serving").returncode == 0
    assert "requirements-serving.txt" in installed_for_serving(install)


def fetched(install):
    """Return the words of the calls of pip that fetch dllogger."""
    return [line for line in install.calls.read_text().splitlines() if "dllogger @" in line]


def test_log_writer_is_fetched_once_from_the_pinned_address(install):
    result = install.run()
    assert result.returncode == 0 and "dllogger" not in result.stderr
    (line,) = fetched(install)
    assert re.search(r"--no-deps dllogger @ git\+https://github\.com/NVIDIA/dllogger@[0-9a-f]{40}$", line)
    assert install.run().returncode == 0 and not fetched(install)
    (install.folder / "requirements-optional.txt").write_text("dllogger @ git+https://example.com/dllogger@1  # another\n")
    assert install.run().returncode == 0 and len(fetched(install)) == 1


def test_log_writer_that_cannot_be_had_is_one_line(install):
    started = time.monotonic()
    result = install.run(DLLOGGER_SECONDS="100")
    assert time.monotonic() - started < 50 and result.returncode == 0 and install.done
    (line,) = (line for line in result.stderr.splitlines() if "dllogger" in line)
    assert line.startswith("install: dllogger could not be fetched within 10 seconds (git+https://github.com/NVIDIA/dllogger@")
    again = install.run(DLLOGGER_SECONDS="100")  # one attempt for each environment
    assert again.returncode == 0 and "dllogger" not in again.stderr and not fetched(install)


@pytest.mark.parametrize(
    ("environment", "said"), [({"CI": "true"}, False), ({"PIP_NO_INDEX": "1"}, True), ({"DLLOGGER": "0"}, False)], ids=["CI", "offline", "there"]
)
def test_log_writer_is_not_looked_for(install, environment, said):
    result = install.run(**environment)
    assert result.returncode == 0 and not fetched(install)
    assert result.stderr.count("dllogger is not fetched, because PIP_NO_INDEX is set") == said == ("dllogger" in result.stderr)
