"""Every operation on events keeps every field; a new field needs only a row of the schema."""

import dataclasses
import functools

import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.augment import Augmentation, Disturbance, Overlay, augment, disturb, turn
from pflow.event.events import Events, concatenate
from pflow.event.jagged import Links
from pflow.event.merge import Merge, merge_hits, overlay
from pflow.event.schema import SCHEMA, Field, build, fields_of, make_links, make_particles, make_tracks, make_truth
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.tokens.features import FEATURES, Feature, feature_columns

PARTS = ("hits", "tracks", "tracker_hits")
COUNTS = np.array([40, 0, 25])
NEW = Field(name="quality", unit="1", default=0.5, low=0, high=1, required=False)


def made() -> Events:
    """Three events with random numbers that the schema allows."""
    rng = np.random.default_rng(1)
    n, parts = int(COUNTS.sum()), {}
    for part in PARTS:
        quantities = {}
        for field in SCHEMA[part]:
            if field.points_to:
                values = rng.integers(0, 4, n)
            elif field.dtype == "int32":
                values = rng.integers(0, 20, n)
            else:
                values = rng.uniform(0.01, 1.0, n) * (1000 if field.unit == "mm" else 1)
                values += 1700 * (field.name == "calo_position")  # other places are not used
            for quantity in field.quantities:
                quantities[quantity] = jagged.unflatten(rng.permutation(values), COUNTS)
        parts[part] = build(part, **quantities)
    particle = np.zeros(3, dtype=int) + 1
    truth = {name: jagged.unflatten(np.ones(3), particle) for name in ("charge", "mass", "px", "py", "pz", "energy")}
    parts["truth"] = build("truth", pdg=jagged.unflatten(np.full(3, 211), particle), **truth)
    links = Links(counts=COUNTS, source=jagged.local_index(COUNTS), particle=np.zeros(n, int), weight=np.ones(n))
    links_of = dict.fromkeys(("hit_links", "track_links", "tracker_hit_links"), links.records())
    return Events(detector=load_detector("ild_g4"), **parts, **links_of)


@pytest.fixture(params=[False, True], ids=["as it is", "with a new field"])
def events(request, monkeypatch) -> Events:
    """With the schema, and with a new row in each part."""
    if request.param:
        for part in PARTS:
            monkeypatch.setitem(SCHEMA, part, (*SCHEMA[part], NEW))
    return made()


LISTS = {
    name: [[1.0], [2.0, 3.0]] for name in ("pdg", "charge", "energy", "mass", "px", "py", "pz", "source", "particle")
}


@pytest.mark.parametrize(
    ("make", "names", "wrong"),
    [
        (make_particles, ("pdg", "charge", "energy", "px", "py", "pz"), "px"),
        (make_truth, ("pdg", "charge", "mass", "px", "py", "pz"), "mass"),
        (functools.partial(make_tracks, b_field=2.0), ("charge", "px", "py", "pz"), "pz"),
        (functools.partial(build, "particles"), ("pdg", "charge", "energy", "px", "py", "pz"), "charge"),
        (make_links, ("source", "particle"), "particle"),
    ],
)
def test_lists_of_other_lengths_are_not_joined(make, names, wrong):
    """With the same total, numbers moved to another event's objects without a word."""
    given = {name: LISTS[name] for name in names}
    make(**given)
    with pytest.raises(ValueError, match=rf": {wrong} has 2 values in event 0, and \w+ 1: expected a number"):
        make(**{**given, wrong: LISTS[wrong][::-1]})
    with pytest.raises(ValueError, match=rf": {wrong} has 3 events, and \w+ 2: expected a number for each"):
        make(**{**given, wrong: [*LISTS[wrong], [1.0]]})


def same(changed: Events, events: Events, *, part: str, rows=slice(None), but: tuple[str, ...] = ()) -> None:
    """Check that the columns of a part, except `but`, equal the given rows of the events, in the schema's types."""
    before, after = jagged.columns(getattr(events, part)), jagged.columns(getattr(changed, part))
    for column, field in fields_of(part).items():
        assert after[column].dtype == field.dtype, column
        if field.name not in but:
            np.testing.assert_array_equal(after[column], before[column][rows], err_msg=f"{part}.{column}")


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")  # random numbers fit no field
@pytest.mark.parametrize("part", PARTS)
class TestEveryField:
    def test_joining_choosing_rotating_and_reflecting_events(self, events, part):
        same(concatenate([events[:1], events[1:]]), events, part=part)
        same(concatenate(list(events)), events, part=part)
        same(events[[0, 1, 2]], events, part=part)
        turning = tuple(field.name for field in SCHEMA[part] if field.axes or field.turns)
        same(turn(events, np.full(len(events), 0.7)), events, part=part, but=turning)
        reflected = np.ones(len(events), dtype=np.bool_)
        same(turn(turn(events, reflected=reflected), reflected=reflected), events, part=part)

    def test_overlay(self, events, part):
        same(overlay(events, [2, 1]), events, part=part)
        alone = augment(events, Augmentation(overlay=Overlay(frequencies=[1.0])), np.random.default_rng(1))
        same(alone, events, part=part)

    def test_disturbance(self, events, part):
        options = Disturbance(energy_scale=0.1, lost_tracks=0.5, dead_cells=0.3, noise_hits=3.0)
        fields = ("energy",) if part == "hits" else ()
        disturbed = disturb(events, options, np.random.default_rng(1))
        identifier = "d0" if part == "tracks" else "time"  # different for all objects
        before, after = (jagged.columns(getattr(e, part))[identifier] for e in (events, disturbed))
        order = np.argsort(before)
        same(disturbed, events, part=part, rows=order[np.searchsorted(before[order], after)], but=fields)
        assert part == "tracker_hits" or len(after) != len(before)

    def test_files(self, events, part, tmp_path):
        write_events(tmp_path / "events.root", events)
        same(read_events(tmp_path / "events.root"), events, part=part)

    def test_impossible_values_are_violations(self, events, part):
        assert events.violations() == []
        column, field = list(fields_of(part).items())[-1]
        values = jagged.columns(getattr(events, part))[column].copy()
        values[0] = min(field.high * 10, 2**31 - 1)
        wrong = dataclasses.replace(events, **{part: jagged.replaced(getattr(events, part), {column: values})})
        assert [violation.field for violation in wrong.violations()] == [f"{part}.{column}"]

    def test_features_can_use_every_field(self, events, part, monkeypatch):
        column, field = list(fields_of(part).items())[-1]
        feature = Feature(f"{part}.{field.name}", lambda columns, _: columns[column].astype(np.float64))
        monkeypatch.setitem(FEATURES, part, {**FEATURES[part], "new": feature})
        (values,) = feature_columns(events, part, ["new"])
        np.testing.assert_array_equal(values, jagged.columns(getattr(events, part))[column])


def test_merged_hits_have_every_field(events):
    merged, cell_of = merge_hits(events, Merge(ecal_mm=1e-3, hcal_mm=1e-3))  # each hit alone
    cell = jagged.flat(cell_of) + np.repeat(jagged.offsets(COUNTS)[:-1], COUNTS)
    for column, values in jagged.columns(events.hits).items():
        np.testing.assert_allclose(jagged.columns(merged)[column][cell], values, rtol=1e-6, err_msg=column)
    assert list(jagged.columns(merged)) == list(fields_of("hits"))


@pytest.mark.parametrize("number", [1.5, np.nan, 2**40])
def test_numbers_that_are_no_index_are_refused(number):
    with pytest.raises(ValueError, match=r"hits: layer: expected whole numbers of type int32, found .*number 1 of"):
        build("hits", energy=[[1, 1]], x=[[1, 1]], y=[[1, 1]], z=[[1, 1]], layer=[[1.0, number]])
    with pytest.raises(ValueError, match="links: particle: expected whole numbers"):
        make_links(source=[[0, 1]], particle=[[0, number]])
    assert make_links(source=[[0.0, 1.0]], particle=[[0, 2]]).source.to_list() == [[0, 1]]
    for dtype in (np.uint32, np.uint64):  # in which C++ keeps -1 as the largest number
        particle = np.array([[0, -1]]).astype(dtype)
        assert make_links(source=[[0, 1]], particle=particle).particle.to_list() == [[0, -1]]
