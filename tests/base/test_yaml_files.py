"""YAML that a person would not write ends in one line, and soon."""

import time

import pytest
import yaml

from tessera.base.errors import TesseraError
from tessera.base.yaml_files import parse_yaml, read_yaml, to_yaml
from tests.refusals import refused

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"must be YAML; with its aliases written out it is too large"),
        ("[" * 1000 + "]" * 1000, r"must be YAML; it is nested too deep"),
        ("{a: " * 1000 + "1" + "}" * 1000, r"must be YAML; it is nested too deep"),
        ("- " * 5000, r"must be YAML; it is nested too deep"),
        ("a: " + "9" * 5000, r"must be YAML; Exceeds the limit \(4300 digits\)"),
        ("a: 1\nb: 2\na: 3", r"must be YAML; the key 'a' stands twice, in lines 1 and 3"),
        ("m: {x: 1, x: 1}", r"must be YAML; the key 'x' stands twice, in lines 1 and 1"),
        ("a: 1\n2: b", r"must be YAML; its keys are text: write quotes around 2 in line 2"),
        ("yes: b", r"must be YAML; .*write quotes around yes"),
        ("? [a, b]\n: c", r"must be YAML; .*write quotes around a list or a mapping"),
        ("a: &a [*a]", r"must be YAML; Circular reference"),
        ("a: !!python/name:os.system", r"must be YAML; could not determine a constructor"),
        ("a: !!binary '*'", r"must be YAML; "),
        ("a: !!int x", r"must be YAML; "),
        ("a: !!bool x", r"must be YAML; "),
        ("a: !!int ''", r"must be YAML; "),
        ("a: !!set {b}", r"must be YAML; Object of type set"),
        ("a: [", r"must be YAML; while parsing"),
        ("a: \x07", r"must be YAML; unacceptable character"),
    ],
)
def test_refused_in_one_line_within_a_second(text, message):
    began = time.process_time()
    with pytest.raises(TesseraError, match=f"^here: value {message}") as caught:
        parse_yaml(text, "here")
    assert "\n" not in str(caught.value)
    assert time.process_time() - began < 1.0


def test_ordinary_yaml_is_what_it_is_elsewhere():
    text = "a: [1, 2.5, text, null, true]\nb: {c: 0x10, d: 'no', e: \"1\"}\nf: &f {g: 1}\nh: *f\ni: {<<: *f, j: 2}\n"
    assert parse_yaml(text, "here") == yaml.safe_load(text)
    assert parse_yaml("", "here") is None


def test_numbers_and_dates_are_what_they_look_like():
    """`seed=010` was 8, and 1:20 was 80."""
    expected = {"a": 5e-3, "b": 1e3, "c": "2024-01-01", "d": "1e", "e": -0.25, "f": 10, "g": -7}
    assert parse_yaml("{a: 5e-3, b: 1e3, c: 2024-01-01, d: 1e, e: -2.5e-1, f: 010, g: -07}", "here") == expected
    expected = {"a": "1:20.5", "b": "1:20", "c": 1000, "d": 16, "e": 0, "f": 0.5}
    assert parse_yaml("{a: 1:20.5, b: 1:20, c: 1_000, d: 0x10, e: 0, f: 00.5}", "here") == expected


@pytest.mark.parametrize("text", ["1e-3", "5E4", ".5e1", "010", "08", "1:20", "2024-01-01", "no", "null", "1_0", "é"])
def test_what_is_written_is_read(text):
    """A run named 1e-3 was of another recipe when it was resumed."""
    value = {"z": text, "a": [text, 0.001, 1e-7, 3, None, True]}
    assert parse_yaml(to_yaml(value), "here") == value
    assert list(parse_yaml(to_yaml(value), "here")) == ["z", "a"]


def test_files(tmp_path):
    path = tmp_path / "a.yaml"
    refused(r"a\.yaml: cannot be read \(No such file or directory\)", read_yaml, path)
    path.write_bytes(b"a: \xff")
    refused("must be UTF-8 text; byte 3 is not", read_yaml, path, "recipe")
    path.write_text("# " + "x" * 1_000_000)
    refused("recipe must be YAML of at most 1,000,000 bytes; got more", read_yaml, path, "recipe")
    path.write_text("a: ü")
    assert read_yaml(path) == {"a": "ü"}


def test_brackets_nest_a_hundred_deep():
    assert str(parse_yaml("[" * 100 + "]" * 100, "here")).count("[") == 100
    refused("nested too deep", parse_yaml, "[" * 101 + "]" * 101, "here")
