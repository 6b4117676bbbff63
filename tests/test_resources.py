from __future__ import annotations

from pathlib import Path

import pytest

from pflow import resources
from pflow.errors import ConfigError


def test_the_built_in_detectors_are_there():
    assert resources.builtin_names("detector") == ["cld", "clic", "ild", "ild_g4"]


def test_a_kind_without_files_has_no_names():
    assert resources.builtin_names("nonsense") == []


def test_a_built_in_name_is_found():
    assert resources.resolve("detector", "cld") == resources.config_dir() / "detector" / "cld.yaml"


def test_a_file_of_the_users_own_is_found(tmp_path):
    (tmp_path / "mine.yaml").write_text("a: 1")
    assert resources.resolve("detector", tmp_path / "mine.yaml") == tmp_path / "mine.yaml"


def test_a_path_is_not_mistaken_for_a_built_in_name(tmp_path, monkeypatch):
    (tmp_path / "cld").write_text("a: 1")
    monkeypatch.chdir(tmp_path)
    assert resources.resolve("detector", "./cld") == Path("cld")


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no detector file 'ild_g5': .* cld, clic, ild, ild_g4 \(nearest.*: ild_g4"):
        resources.resolve("detector", "ild_g5")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="no detector file"):
        resources.resolve("detector", tmp_path)


def test_a_mapping_is_read(tmp_path):
    (tmp_path / "a.yaml").write_text("name: ä\nlist: [1, 2.5, true]\n", encoding="utf-8")
    assert resources.load_yaml(tmp_path / "a.yaml") == {"name": "ä", "list": [1, 2.5, True]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{broken", "not a YAML file"),
        (b"\xff\xfe\x00bytes", "not a YAML file"),
        (b"- a\n- b\n", "expected a mapping of names to values, found list"),
        (b"", "expected a mapping of names to values, found NoneType"),
        (b"!!python/object/apply:os.getcwd []", "not a YAML file"),
    ],
    ids=["syntax", "bytes", "list", "empty", "code"],
)
def test_what_is_no_mapping_names_the_file(tmp_path, content, message):
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"a\.yaml: {message}"):
        resources.load_yaml(tmp_path / "a.yaml")
