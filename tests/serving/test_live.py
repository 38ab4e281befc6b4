"""Tests of the live version in `config.pbtxt`, and of publishing with stubs of servers."""

import shutil
from pathlib import Path

import pytest
from served_models import PLAIN, export, train, write

from serving import publish as module
from serving.connection import RequestError
from serving.control import Unreachable
from serving.live import CONFIG, announce, config_of, live, naming, pin, stated, versions
from serving.publish import PublishConfig, publish
from serving.repository import FLAGS
from utils.errors import UserError


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        ("max_batch_size: 8\n", None),
        ("version_policy: { specific: { versions: [ 3 ] } }\n", [3]),
        ("a: 1\nversion_policy {\n  specific {\n    versions: 1  # 7 was worse\n    versions: 12\n  }\n}\nb: 2\n", [1, 12]),
        ("version_policy: { latest { num_versions: 2 } }\n", []),
        ("version_policy: { all {} }\n", []),
        ("# version_policy: { specific: { versions: [ 3 ] } }\n", None),
    ],
)
def test_versions_named_in_config_pbtxt(config, numbers):
    assert stated(config) == numbers
    changed = naming(config, 5)
    assert stated(changed) == [5] and changed.count("version_policy") - config.count("# version_policy") == 1
    assert [line for line in ("max_batch_size: 8", "a: 1", "b: 2") if line in config] == [
        line for line in ("max_batch_size: 8", "a: 1", "b: 2") if line in changed
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Train and export a model; return the folder of the checkpoint and the repository."""
    folder = tmp_path_factory.mktemp("live")
    train(write(folder / "data", PLAIN), folder / "c")
    export(folder / "c", folder / "r")
    return folder


@pytest.fixture
def repository(exported, tmp_path):
    return shutil.copytree(exported / "r", tmp_path / "r")


def config(exported, repository, **changes):
    return PublishConfig(**({"repository": str(repository), "checkpoint": str(exported / "c")} | changes))


def test_publish_without_a_server_only_writes_the_version(exported, repository, capfd, monkeypatch):
    before = (repository / "dlrm" / CONFIG).read_text()
    for number in (2, 3, 4):
        assert publish(config(exported, repository, keep=1)) == number
        monkeypatch.setattr(module, "export_version", copied)  # one real export is enough
    assert versions(repository / "dlrm") == [1, 2, 3, 4] and live(repository / "dlrm") == [1]
    assert (repository / "dlrm" / CONFIG).read_text() == before
    assert "keeps version 1 live; change it with serving.publish --model_version" in capfd.readouterr().out
    assert publish(config(exported, repository, checkpoint=None, model_version=3)) == 3
    assert live(repository / "dlrm") == [3] and versions(repository / "dlrm") == [1, 2, 3, 4]


def test_repository_of_an_older_export_keeps_its_served_version(exported, repository):
    """Publishing keeps the served version of an older export, whose config.pbtxt names no version, so that Triton takes the newest."""
    model = repository / "dlrm"
    old = "\n".join(line for line in (model / CONFIG).read_text().splitlines() if "version_policy" not in line) + "\n"
    (model / CONFIG).write_text(old)
    (model / "1" / CONFIG).unlink()
    assert live(model) == [1] and stated(old) is None
    assert publish(config(exported, repository)) == 2
    assert live(model) == [1] and (model / CONFIG).read_text() == naming(old, 1)
    announce(model, 2)
    assert live(model) == [2]
    announce(model, 1)  # back to the older version
    assert live(model) == [1] and config_of(model, 1) == (model / CONFIG).read_text()


def test_pin_names_the_served_version_although_a_newer_exists(repository):
    model = repository / "dlrm"
    shutil.copytree(model / "1", model / "2")
    text = "name: 'dlrm'\n"
    (model / CONFIG).write_text(text)
    pin(model, [1])
    assert live(model) == [1]
    (model / CONFIG).write_text(text)
    pin(model)
    assert live(model) == [2]


def test_version_policy_of_an_operator_is_kept(exported, repository):
    path = repository / "dlrm" / CONFIG
    path.write_text("\n".join(line for line in path.read_text().splitlines() if "version_policy" not in line) + "\nversion_policy: { all {} }\n")
    before = path.read_text()
    publish(config(exported, repository))
    assert path.read_text() == before


def test_version_without_export_flags_does_not_block_publishing(exported, repository, capfd):
    shutil.copytree(repository / "dlrm/1", repository / "dlrm/7")
    (repository / "dlrm/7" / FLAGS).unlink()
    assert publish(config(exported, repository)) == 8
    assert "7/flags.json: cannot be read (No such file or directory); using the export flags of version 1" in capfd.readouterr().err
    (repository / "dlrm/8" / FLAGS).write_text("{")
    for number in (1, 7):
        (repository / "dlrm" / str(number) / FLAGS).unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"8/flags\.json: cannot be read .*--mode export writes there"):
        publish(config(exported, repository))


@pytest.mark.parametrize("name", ["../x", "", ".x", "a/b", "a b"])
def test_invalid_model_name_is_refused(name):
    with pytest.raises(ValueError, match=r"--model_name .*expected letters, digits"):
        PublishConfig(model_name=name)


def test_exactly_one_of_checkpoint_and_version_is_required(exported, repository):
    for changes, message in (({"checkpoint": None}, "--checkpoint is missing"), ({"model_version": 1}, "drop one of them")):
        with pytest.raises(UserError, match=message):
            publish(config(exported, repository, **changes))
    with pytest.raises(UserError, match="has no version 9; expected one of 1"):
        publish(config(exported, repository, checkpoint=None, model_version=9))


class Stand:
    """A stub of a server, with the versions it has and the version it refuses to load."""

    def __init__(self, url, **versions):
        self.url, self.versions, self.refuses, self.gone = url, dict(versions), None, False

    def states(self, model):
        if self.gone:
            raise Unreachable(f"{self.url}: nobody is there")
        return {int(name.removeprefix("v")): state for name, state in self.versions.items()}

    def ready(self, model):
        return [number for number, state in self.states(model).items() if state == "READY"]

    def in_use(self, model):
        return {number for number, state in self.states(model).items() if state != "UNAVAILABLE"}

    def load(self, model, numbers):
        self.states(model)
        if list(numbers) == [self.refuses]:
            raise RequestError(f"{self.url}: no luck")
        self.versions = dict.fromkeys(self.versions, "UNAVAILABLE") | {f"v{number}": "READY" for number in numbers}

    def load_named(self, model):
        self.load(model, live(model) if hasattr(model, "name") else [])

    def unload(self, model):
        self.versions = dict.fromkeys(self.versions, "UNAVAILABLE")

    def close(self):
        pass


@pytest.fixture
def servers(monkeypatch):
    """Return stubs of two servers, named a and b, that serve version 1."""
    found = {name: Stand(name, v1="READY") for name in "ab"}
    monkeypatch.setattr(module, "Control", found.__getitem__)
    monkeypatch.setattr(module, "UNLOADING_S", 0.5)
    monkeypatch.setattr(module, "export_version", copied)
    return found


def copied(config, words, number, gives_way=False):
    """Copy version 1 as a new version, in place of an export, for tests of the steps after it."""
    model = Path(config.repository) / config.model_name
    shutil.copytree(model / "1", model / str(number))
    (model / str(number) / CONFIG).write_text(naming((model / "1" / CONFIG).read_text(), number))


def test_version_is_announced_after_every_server_loaded_it(exported, repository, servers, monkeypatch):
    named = []

    def noted(model, number):
        named.append([one.ready(model.name) for one in servers.values()])
        announce(model, number)

    monkeypatch.setattr(module, "announce", noted)
    assert publish(config(exported, repository, url=("a", "b"), keep=1)) == 2
    assert named == [[[2], [2]]] and live(repository / "dlrm") == [2] and versions(repository / "dlrm") == [2]


def test_refusal_by_one_server_rolls_all_back(exported, repository, servers):
    servers["b"].refuses = 2
    with pytest.raises(UserError, match="b: no luck; version 2 was removed; version 1 is still served"):
        publish(config(exported, repository, url=("a", "b"), keep=1))
    assert servers["a"].ready("dlrm") == servers["b"].ready("dlrm") == [1]
    assert versions(repository / "dlrm") == live(repository / "dlrm") == [1]


def test_formats_that_a_server_does_not_serve_are_left_alone(exported, repository, servers, capfd):
    """Publishing loads dlrm and dlrm_onnx, which both servers serve, and leaves dlrm_savedmodel alone, which neither does."""
    shutil.copytree(repository / "dlrm/1", repository / "dlrm/2")
    for name in ("dlrm_savedmodel", "dlrm_onnx"):
        shutil.copytree(repository / "dlrm", repository / name)
    loaded = []
    for one in servers.values():
        one.ready = lambda model: [] if model == "dlrm_savedmodel" else [1]
        one.load = lambda folder, numbers: loaded.append((folder.name, *numbers))
        one.load_named = lambda model: None
    assert publish(config(exported, repository, checkpoint=None, model_version=2, url=("a", "b"))) == 2
    assert loaded == 2 * [("dlrm", 2), ("dlrm_onnx", 2)]
    assert [live(repository / name) for name in ("dlrm", "dlrm_savedmodel", "dlrm_onnx")] == 3 * [[2]]


@pytest.mark.parametrize("state", ["READY", "LOADING", "UNLOADING"])
def test_version_in_use_by_a_server_is_kept(exported, repository, servers, state, capfd):
    shutil.copytree(repository / "dlrm/1", repository / "dlrm/2")
    servers["b"].load = lambda model, numbers: servers["b"].versions.update({"v1": state, "v3": "READY"})
    assert publish(config(exported, repository, url=("a", "b"), keep=1)) == 3
    assert versions(repository / "dlrm") == [1, 3]
    assert "dlrm/1, as a server still uses it" in capfd.readouterr().err


def test_unreachable_server_prevents_removal_of_old_versions(exported, repository, servers, capfd):
    def ends(model, numbers):
        servers["b"].gone = True
        raise Unreachable("b: nobody is there")

    servers["b"].load = ends
    assert publish(config(exported, repository, url=("a", "b"), keep=1)) == 2
    assert versions(repository / "dlrm") == [1, 2] and live(repository / "dlrm") == [2]
    errors = capfd.readouterr().err
    assert "b: nobody is there; it will serve version 2 after its restart" in errors and "b: nobody is there; no old version was removed" in errors


def test_unreachable_server_is_reported_before_anything_is_written(exported, repository, servers):
    servers["b"].gone = True
    with pytest.raises(UserError, match="b: nobody is there"):
        publish(config(exported, repository, url=("a", "b")))
    assert versions(repository / "dlrm") == [1]
