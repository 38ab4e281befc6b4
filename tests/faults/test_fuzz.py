"""Tests that files which a user can edit or a disk can damage give one clear error line for any content, never a traceback or a hang."""

import copy
import json
import warnings
import zlib

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from victim import write_dataset

from dataloading.contract import check_quick
from dataloading.feature_spec import FeatureSpec
from dataloading.sources import open_split, table_rows
from dataloading.tf_raw import TfRawSplit
from run.continuing import check_continues, metadata, training_invariants
from run.inherit import inherit
from training.features import ModelFeatures, check_features, saved_features
from training.growth import Growth
from utils.checkpoint import manifest
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import Array, ArrayPart, save
from utils.dialects.command_line import parse
from utils.distributed import World
from utils.errors import UserError

# A case that takes a minute hangs. The number of cases is the default of Hypothesis, and 300 with --long.
CASES = settings(deadline=60_000, suppress_health_check=list(HealthCheck), database=None, derandomize=True)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["", "int8", "float16", "bool", "../x", "\0", "nan", "1e400", "step-00000001", "a" * 5000, "train/label.bin", "/dev/zero", "/dev/stdin"]
    ),
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4), max_leaves=8
)


def places(node, path=()):
    """Yield the paths to every node of a document."""
    yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from places(value, (*path, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from places(value, (*path, i))


@st.composite
def spoiled(draw, document):
    """Draw a copy of a document with a few nodes replaced, removed, renamed or repeated."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document))))
        if not path:
            if draw(st.integers(0, 20)) == 0:
                return draw(anything)
            continue
        *above, last = path
        node = document
        for key in above:
            node = node[key]
        action = draw(st.sampled_from(["replace", "replace", "remove", "rename", "repeat"]))
        if action == "replace":
            node[last] = draw(anything)
        elif action == "remove":
            del node[last]
        elif isinstance(node, dict):
            node[draw(st.text(max_size=6)) if action == "rename" else f"{last}_"] = copy.deepcopy(node[last])
        else:
            node.append(copy.deepcopy(node[last]))
    return document


def one_line(action):
    """Call something that may raise UserError; its message must be one clear line."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            action()
        except UserError as error:
            assert str(error).strip() and "\n" not in str(error).strip(), str(error)
            assert len(str(error)) < 20_000


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture(scope="module")
def specification(dataset):
    return yaml.safe_load((dataset / "feature_spec.yaml").read_text())


@CASES
@given(st.data())
def test_spoiled_feature_specification_gives_one_line(dataset, specification, data):
    path = dataset / "spoiled.yaml"
    path.write_text(yaml.safe_dump(data.draw(spoiled(specification)), sort_keys=False))

    def use():
        spec = FeatureSpec.from_yaml(path)
        check_quick(spec, ("train", "test"))
        split = TfRawSplit(spec, "train")
        split.fingerprint()
        split.close()

    one_line(use)


@pytest.fixture(scope="module")
def generated(dataset):
    flags = ("--dataset_type", "synthetic", "--synthetic_dataset_use_feature_spec", "--dataset_path", str(dataset), "--batch_size", "4")
    return parse(list(flags), "").data


@CASES
@given(st.data())
def test_spoiled_generator_specification_gives_one_line(dataset, specification, generated, data):
    path = dataset / "spoiled_generator.yaml"
    path.write_text(yaml.safe_dump(data.draw(spoiled(specification | {"source_spec": {}})), sort_keys=False))

    def use():
        spec = FeatureSpec.from_yaml(path)
        table_rows(generated, spec)
        open_split(generated, spec, "train", 0, print).fingerprint()

    one_line(use)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    config = parse(["--dataset_type", "synthetic", "--embedding_dim", "4", "--bottom_mlp_dims", "4", "--top_mlp_dims", "1"], "")
    import numpy as np

    values = np.ones((7, 4), np.float32)
    about = metadata(config, FeatureSpec((), (), "label", {})) | {
        "features": {"numerical": ["n"], "categorical": {"cat_0": 7}},
        "run": training_invariants(config, 100, "abc"),
    }
    about["position"] = {"step": 1, "epoch": 0, "batch": 1, "samples": 4, "best_auc": 0.5, "evals_without_gain": 0}
    part = ArrayPart("tables/cat_0/weights", lambda start, stop: values[start:stop])
    return config, save(folder, 1, {part.array: Array(values.shape)}, [part], about, World())


@CASES
@given(st.data())
def test_spoiled_manifest_gives_one_line(checkpoint, data):
    """The manifest has wrong values and a matching checksum."""
    config, folder = checkpoint
    path = folder / "manifest.json"
    original = path.read_text()
    document = json.loads(original)
    document.pop("checksum")
    document = json.loads(json.dumps(data.draw(spoiled(document))))
    if isinstance(document, dict):
        document["checksum"] = f"{zlib.crc32(json.dumps(document, sort_keys=True).encode()):08x}"
    try:
        path.write_text(json.dumps(document))

        def use():
            found = Checkpoint(folder)
            taken = inherit(config, found.manifest)
            check_features(found, ModelFeatures({"cat_0": 7}, ("n",)))
            Growth(found, saved_features(found), ModelFeatures({"cat_0": 9, "new": 2}, ("n",)))
            check_continues(found, training_invariants(taken, 100, "abc"))
            position = found.manifest["position"]
            assert position["step"] == position["epoch"] + position["batch"]  # here an epoch is one batch
            for name in found.names(""):
                found.read(name)

        one_line(use)
    finally:
        path.write_text(original)


@CASES
@given(st.data())
def test_spoiled_array_description_gives_one_line(checkpoint, data):
    """`zarr.json` has wrong values and a matching checksum."""
    _, folder = checkpoint
    path, listing = folder / "tables/cat_0/weights/zarr.json", folder / "manifest.json"
    original, manifest_text = path.read_text(), listing.read_text()
    content = {name: value for name, value in manifest.read(folder).items() if name not in ("format", "files")}
    try:
        path.write_text(json.dumps(data.draw(spoiled(json.loads(original)))))
        manifest.write(folder, content)
        one_line(lambda: Checkpoint(folder).read("tables/cat_0/weights"))
    finally:
        path.write_text(original)
        listing.write_text(manifest_text)


@pytest.fixture(scope="module")
def flags():
    """Return all flags and their defaults, as a YAML file gives them."""
    defaults = parse(["--dataset_type", "synthetic"], "").flat()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


@CASES
@given(st.data())
def test_spoiled_yaml_configuration_gives_one_line(tmp_path_factory, flags, data):
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(yaml.safe_dump(data.draw(spoiled(flags)), sort_keys=False))
    one_line(lambda: parse(["--config", str(path)], ""))


@CASES
@given(st.binary(max_size=300), st.sampled_from(["config", "spec"]))
def test_bytes_that_are_not_yaml_give_one_line(tmp_path_factory, content, kind):
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(content)
    one_line(lambda: parse(["--config", str(path)], "") if kind == "config" else FeatureSpec.from_yaml(path))
