"""The command that writes specifications of synthetic data."""

from pathlib import Path

import pytest

from dataloading.feature_spec import FeatureSpec
from dataloading.generate_feature_spec import VARIANTS, main, variant_spec
from tests.helpers.datasets import spec_in
from utils.errors import UserError

TRACKED = Path(__file__).parents[2] / "feature_spec.yaml"


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_is_written_over_an_existing_file(variant, tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text("old")
    assert main(["--variant", variant, "--dst", str(path)]) == 0
    assert FeatureSpec.from_yaml(path).cardinalities == VARIANTS[variant]
    assert list(tmp_path.iterdir()) == [path]
    assert variant in capsys.readouterr().out


def test_the_tracked_specification_is_the_t15_variant():
    assert TRACKED.read_text() == variant_spec("criteo_t15_synthetic").to_yaml()


def test_invalid_destination_is_rejected(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        main(["--dst", str(tmp_path)])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"--dst {tmp_path}/file/a/spec.yaml: folder .* cannot be created: Not a directory"):
        main(["--dst", str(tmp_path / "file" / "a" / "spec.yaml")])


def test_missing_folder_is_created(tmp_path):
    assert main(["--variant", "small_synthetic", "--dst", str(tmp_path / "a" / "SPEC" / "feature_spec.yaml")]) == 0
    assert spec_in(tmp_path / "a" / "SPEC").cardinalities == VARIANTS["small_synthetic"]


def test_abbreviated_flags_are_refused():
    with pytest.raises(UserError, match="unknown flag --vari; did you mean --variant"):
        main(["--vari", "small_synthetic"])
