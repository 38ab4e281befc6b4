"""YAML files: the values read, and for invalid files an error of one line with file and line number."""

import os

import pytest

from utils.yaml_file import YamlError, load_yaml


@pytest.fixture(name="read")
def _read(tmp_path):
    def read(content):
        path = tmp_path / "file.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_yaml(path)

    return read


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None),
        ("a: 1\nb: [0x10, 0b11, 1_000, -7, 0]", {"a": 1, "b": [16, 3, 1000, -7, 0]}),
        ("[1.5, -2.e+3, .5, .inf, 1.]", [1.5, -2000.0, 0.5, float("inf"), 1.0]),
        ("a: 1:30\nb: 1:30.5\nc: 010", {"a": "1:30", "b": "1:30.5", "c": "010"}),  # YAML 1.1 reads 90, 90.5 and 8
        ("a: &x [1, 2]\nb: *x", {"a": [1, 2], "b": [1, 2]}),  # PyYAML writes a list that occurs twice this way
        ("a: &x {k: 1, l: 2}\nb: &y {<<: *x, k: 3}\nc: {<<: *y, l: 4}", {"a": {"k": 1, "l": 2}, "b": {"k": 3, "l": 2}, "c": {"k": 3, "l": 4}}),
        ("\ufeffa: é", {"a": "é"}),
        ("a: é".encode("utf-16"), {"a": "é"}),
    ],
)
def test_values_read(read, text, content):
    assert read(text) == content


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: not valid YAML: 'a' is given twice, first in line 1"),
        ("x:\n  1: a\n  0x1: b", "line 3: not valid YAML: '0x1' is given twice, first in line 2"),
        ("a: 1\nb: [", "line 2: not valid YAML"),
        ("a: 1\nb: !!int x", "line 2: not valid YAML: int: "),
        ("a: 1\nb: " + "9" * 5000, "line 2: not valid YAML: int: "),
        ("a: 1\n? {a: 1}\n: 2", "line 2: not valid YAML"),
        ("a: 1\nb: \x00", "line 2: not valid YAML: character 0x00"),
        ("a: 1\nb: !!python/object:os.system x", "line 2: not valid YAML"),
        ("a: 1\n---\nb: 2", "line 2: not valid YAML"),
        ("a: &a\n  b: *a", "an alias that contains itself"),
        ("[" * 5000, "nested too deeply"),
        (b"a: 1\nb: \xff\n", "line 2: byte 0xff is not UTF-8"),
        (b"a: " + b"x" * (9 << 20), "larger than 8 MiB"),
    ],
)
def test_invalid_yaml_is_a_one_line_error_that_names_file_and_line(read, tmp_path, text, message):
    with pytest.raises(YamlError) as error:
        read(text)
    said = str(error.value)
    assert said.startswith(str(tmp_path / "file.yaml")) and message in said and "\n" not in said and len(said) < 500


@pytest.mark.parametrize("form", ["[{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}]", "{{<<: [{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}]}}"])
def test_exponential_aliases_are_rejected_at_once(read, form):
    bomb = ["a0: &a0 {x: 1}"] + [f"a{i + 1}: &a{i + 1} {form.format(f'*a{i}')}" for i in range(30)]
    with pytest.raises(YamlError, match="more than 1,000,000 values"):
        read("\n".join(bomb))


def test_unreadable_paths_are_errors(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("nothing", "No such file"), ("", "Is a directory"), ("pipe", "a named pipe"), ("a\0b", "null")):
        with pytest.raises(YamlError, match=message):
            load_yaml(tmp_path / name)


def test_shell_pipe_is_read():
    end, start = os.pipe()
    os.write(start, b"a: 1")
    os.close(start)
    assert load_yaml(f"/dev/fd/{end}") == {"a": 1}
    os.close(end)
