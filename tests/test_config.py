import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pflow import config
from pflow.config import from_plain, load_yaml, to_plain
from pflow.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Inner:
    size: float
    name: str = "one"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    parts: Mapping[str, Inner] = dataclasses.field(default_factory=dict)
    several: tuple[Inner, ...] = ()
    numbers: tuple[int, ...] = ()
    maybe: float | None = None
    yes: bool = False


FULL = Outer(
    inner=Inner(1.5), parts={"a": Inner(2.0, "two")}, several=(Inner(0.0),), numbers=(1, 2), maybe=0.5, yes=True
)


@pytest.mark.parametrize("value", [FULL, Outer(inner=Inner(1.0))])
def test_an_equal_value_comes_back(value):
    assert from_plain(Outer, json.loads(json.dumps(to_plain(value))), where="it") == value
    assert from_plain(Outer, value, where="it") is value


def test_numbers_that_yaml_takes_for_texts_are_read_where_a_number_is_expected(tmp_path):
    (path := tmp_path / "it.yaml").write_text("inner: {size: 5e-5, name: 12e4}\nmaybe: 1.5E3\n", encoding="utf-8")
    assert from_plain(Outer, load_yaml(path), where="it") == Outer(inner=Inner(5e-5, "12e4"), maybe=1500.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iner": 1}, r"it: unknown field 'iner'.*inner"),
        ({"inner": {}}, r"it: inner: field 'size' is missing"),
        ({"inner": 3}, r"it: inner: expected a mapping, found int"),
        ({"inner": {"size": "1"}}, r"it: inner: 'size' must be a number, found '1'"),
        ({"inner": {"size": "1.2.3e4"}}, r"it: inner: 'size' must be a number, found '1\.2\.3e4'"),
        ({"inner": {"size": 1.0, "name": 2}}, r"'name' must be text"),
        ({"parts": [1]}, r"'parts' must be a mapping"),
        ({"several": [{"size": 1}, {}]}, r"it: several\[1\]: field 'size' is missing"),
        ({"numbers": "12"}, r"'numbers' must be a list"),
        ({"numbers": ["1e1"]}, r"'numbers\[0\]' must be a whole number, found '1e1'"),
        ({"numbers": [1, 2.0]}, r"'numbers\[1\]' must be a whole number"),
        ({"yes": 1}, r"'yes' must be true or false"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        from_plain(Outer, to_plain(FULL) | change, where="it")


def test_built_in_names_and_files_of_the_users_own_are_found(tmp_path, monkeypatch):
    names = config.builtin_names("detector")
    assert sorted({"cld", "clic", "ild", "ild_g4"} | set(names)) == names
    assert config.builtin_names("nonsense") == []
    assert config.resolve("detector", "cld") == config.config_dir() / "detector" / "cld.yaml"
    (tmp_path / "mine.yaml").write_text("a: 1")
    assert config.resolve("detector", tmp_path / "mine.yaml") == tmp_path / "mine.yaml"
    (tmp_path / "cld").write_text("a: 1")
    monkeypatch.chdir(tmp_path)
    assert config.resolve("detector", "./cld") == Path("cld")
    with pytest.raises(ConfigError, match="no detector file"):
        config.resolve("detector", tmp_path)
    with pytest.raises(ConfigError, match=r"no detector file 'ild_g5': .* cld, clic, ild, ild_g4 \(nearest.*: ild_g4"):
        config.resolve("detector", "ild_g5")
    with pytest.raises(TypeError, match="expected a name or file of a layout; found int"):
        config.resolve("layout", 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{broken", "not a YAML file"),
        (b"a: 1\nb:\n  c: 1\n  c: 2\n", "not a YAML file: 'c' twice"),
        (b"\xff\xfe\x00bytes", "not a YAML file"),
        (b"- a\n- b\n", "expected a mapping of names to values, found list"),
        (b"", "expected a mapping of names to values, found nothing"),
        (b"!!python/object/apply:os.getcwd []", "not a YAML file"),
    ],
    ids=["syntax", "twice", "bytes", "list", "empty", "code"],
)
def test_what_is_no_mapping_names_the_file(tmp_path, content, message):
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"a\.yaml: {message}"):
        config.load_yaml(tmp_path / "a.yaml")
