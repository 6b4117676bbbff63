from pathlib import Path
from typing import Any

import pytest
import yaml

from pflow.errors import ConfigError, InputError
from pflow.io.flat import FIELDS, Branch, load_layout

HITS = {"energy": "e", "x": "hx", "y": "hy", "z": "hz"}


def written(folder: Path, **content: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_built_in_layout_names_every_quantity():
    layout = load_layout("g4")
    assert {part: set(fields) for part, fields in layout.parts.items()} == {
        part: set(fields) for part, fields in FIELDS.items()
    }
    assert (layout.name, layout.tree, layout.detector, layout.event) == ("g4", "events", "ild_g4", "event")
    assert layout.reference_name == "PandoraPFA"


def test_hits_alone_make_a_layout(tmp_path):
    layout = load_layout(written(tmp_path, hits=HITS))
    assert layout.parts == {"hits": {name: Branch(branch=branch) for name, branch in HITS.items()}}
    assert (layout.name, layout.tree, layout.detector, layout.event) == ("mine", "events", None, None)


def test_an_unknown_layout_names_the_built_in_ones():
    with pytest.raises(ConfigError, match="no layout file 'g5': neither a file nor one of cld_g4, g4"):
        load_layout("g5")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"hits": HITS, "track": {}}, r"mine\.yaml: unknown field 'track' \(nearest matches: tracks"),
        ({"hits": HITS | {"enrgy": "e"}}, r"hits: unknown field 'enrgy' \(nearest matches: energy"),
        ({"tree": "events"}, "'hits' is missing"),
        ({"hits": {"energy": "e", "x": "hx"}}, "hits: needs at least energy, x, y, z; found energy, x"),
        ({"hits": HITS, "tracks": {"px": "a"}}, "tracks: needs at least px, py, pz, charge, or omega, phi, tan_lambda"),
        ({"hits": HITS, "tree": 3}, "'tree' must be text, found 3"),
        ({"hits": HITS | {"time": {"scale": 3}}}, r"hits\.time: field 'branch' is missing"),
        ({"hits": HITS | {"time": {"branch": "t", "scale": "3"}}}, r"hits\.time: 'scale' must be a number, found '3'"),
        ({"hits": HITS | {"time": {"branch": "t", "unit": "ns"}}}, r"hits\.time: unknown field 'unit'"),
        ({"hits": HITS | {"time": {"branch": "t", "names": {0: "a"}}}}, "'names' belongs to hits.subdetector only"),
    ],
)
def test_invalid_layouts_are_refused(tmp_path, content, message):
    with pytest.raises(ConfigError, match=message):
        load_layout(written(tmp_path, **content))


def test_half_a_part_is_an_error_with_the_nearest_branches():
    keys = ["track.px", "track.py", "track.p_z", "track.charge"]
    with pytest.raises(InputError, match=r"f\.root, 'track\.pz': .* needs it for the tracks \(nearest matches: .*p_z"):
        load_layout("g4").available("tracks", keys, file="f.root")
