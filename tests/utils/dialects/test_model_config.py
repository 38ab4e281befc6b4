"""`--model_config FILE.json`: flags from a file, which those of the command line override."""

import pytest

from utils.config.ineffective import warnings
from utils.dialects.command_line import UsageError, parse

SYNTHETIC = ("--dataset_type", "synthetic")


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "model.json"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("form", ["--model_config {}", "--model_config={}", "-model_config {}"])
def test_command_line_overrides_the_file(file, form):
    path = file('{"num_numerical_features": 5, "embedding_dim": 16, "top_mlp_sizes": [8, 1], "bottom_mlp_sizes": [4, 16], "hash_indices": true}')
    config = parse([*SYNTHETIC, *form.format(path).split(), "--top_mlp_sizes", "9,1"], "")
    assert (config.model.embedding_dim, config.model.top_mlp_dims, config.model.bottom_mlp_dims) == (16, (9, 1), (4, 16))
    assert (config.data.synthetic_dataset_num_numerical_features, config.data.out_of_range) == (5, "hash")
    words = "--num_numerical_features 5 --embedding_dim 16 --bottom_mlp_sizes 4,16 --hash_indices true"
    assert f"--model_config {path} is {words} here" in warnings(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "model.json: .*; expected JSON"),
        ("[1]", "expected an object of flags and values, found list"),
        ('{"depth": 3}', "model.json: 'depth' is not a flag here; remove it"),
        ('{"embedding_dim": null}', "embedding_dim: expected a number, a word, true, false or a list of numbers"),
        ('{"top_mlp_sizes": ["a"]}', "top_mlp_sizes: expected a number"),
        ('{"embedding_dim": "x"}', "'x' is not a whole number"),
    ],
)
def test_invalid_file_is_rejected(file, text, message):
    with pytest.raises(UsageError, match=message):
        parse([*SYNTHETIC, "--model_config", file(text)], "")


def test_missing_file_and_two_files_are_rejected(file, tmp_path):
    with pytest.raises(UsageError, match="nope: No such file or directory"):
        parse([*SYNTHETIC, "--model_config", str(tmp_path / "nope")], "")
    for words in (["--model_config"], ["--model_config", file("{}"), "--model_config", file("{}")]):
        with pytest.raises(UsageError, match="--model_config: expected one JSON file"):
            parse([*SYNTHETIC, *words], "")
