import dataclasses
import pickle
from typing import Any

import awkward as ak
import numpy as np
import pytest

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.events import (
    Events,
    Flag,
    ImplausibleWarning,
    Reconstruction,
    concatenate,
    concatenate_reconstructions,
    keep_hits,
)
from pflow.event.schema import make_hits, make_links, make_particles, make_tracker_hits, make_tracks, make_truth
from pflow.physics.detector import load_detector

DETECTOR = load_detector("ild_g4")
ONE = ak.Array([[1.0, 2.0], [], [3.0]])
"""Three events with two, no and one object."""
INDEX = ak.Array([[0, 1], [], [0]])


def made(**changed: Any) -> Events:
    """Three events with every part, some of them replaced."""
    momentum = {"px": ONE, "py": ONE * 2, "pz": ONE * 2}
    links = make_links(source=INDEX, particle=INDEX)
    parts: dict[str, Any] = {
        "hits": make_hits(energy=ONE, x=ONE * 3, y=ONE * 4, z=ONE * 12),
        "tracks": make_tracks(b_field=3.5, charge=ONE / ONE, **momentum),
        "tracker_hits": make_tracker_hits(x=ONE, y=ONE, z=ONE),
        "truth": make_truth(pdg=INDEX + 21, mass=ONE * 4, charge=ONE * 0, **momentum),
        "hit_links": links,
        "track_links": links,
        "tracker_hit_links": links,
        "reference": make_particles(pdg=INDEX + 21, charge=ONE * 0, energy=ONE * 5, **momentum),
        "path": "in.root",
        "entry": np.array([10, 11, 12]),
        "detector": DETECTOR,
    }
    return Events(**(parts | changed))


class TestRecords:
    def test_missing_quantities_have_defaults(self):
        events = made()
        assert np.isnan(events.hits.time[0, 0])
        assert np.isnan(events.tracks.d0[0, 0])
        assert np.isnan(events.tracks.calo_position.x[0, 0])
        assert np.isnan(events.reference.score[0, 0])
        assert (events.hits.layer[0, 0], events.hits.subdetector[0, 0]) == (-1, 0)
        assert (events.truth.status[0, 0], events.truth.parent[0, 0]) == (1, -1)

    def test_energy_and_mass_follow_from_each_other_and_the_momentum(self):
        assert made().truth.energy[0].to_list() == [5.0, 10.0]  # m = 4, p = (1, 2, 2), and twice that
        assert made().reference.mass[0].to_list() == [4.0, 8.0]
        space_like = make_particles(pdg=INDEX, charge=ONE, energy=ONE, px=ONE * 2, py=ONE, pz=ONE)
        assert space_like.mass.to_list() == [[0.0, 0.0], [], [0.0]]


class TestLinks:
    @pytest.mark.parametrize(
        ("source", "weight", "expected"),
        [
            ([[0, 1, 0], [0]], [[1.0, 4e-5, 3.0], [3.3]], [[0.25, 1.0, 0.75], [1.0]]),
            ([[4, 2, 4]], [[0.0, 7.0, 0.0]], [[0.5, 1.0, 0.5]]),
            ([[4, 4]], None, [[0.5, 0.5]]),
        ],
    )
    def test_weights_of_a_source_sum_to_1_within_its_event(self, source, weight, expected):
        assert make_links(source=source, particle=source, weight=weight).weight.to_list() == expected

    @pytest.mark.parametrize("weights", [[-2.0], [-1.0, 1.0], [-0.5, 1.5], [np.inf]])
    def test_a_negative_or_infinite_weight_is_a_violation(self, weights):
        zeros = ak.Array([[0] * len(weights), [], []])
        links = make_links(source=zeros, particle=zeros, weight=ak.Array([weights, [], []]))
        violations = made(hit_links=links).violations()
        assert {violation.field for violation in violations} == {"hit_links.weight"}
        found = f"found {weights[0] if weights[0] < 0 else np.nan} at index 0"
        assert any(found in violation.message for violation in violations)


class TestSelection:
    def test_emptied_events_have_no_objects_and_a_flag(self):
        events = made(flags=np.array([int(Flag.MAX_PARTICLES), 0, 0])).emptied(np.array([True, False, False]))
        for name, part in events.parts():
            assert ak.num(part).to_list() == [0, 0, 1], name
        assert events.flags.tolist() == [Flag.MAX_PARTICLES | Flag.BAD_INPUT, 0, 0]
        assert events.entry.tolist() == [10, 11, 12]


class TestConcatenate:
    def test_concatenate_inverts_slicing_and_drops_missing_parts(self, assert_same):
        joined = concatenate([made()[:1], made()[1:]])
        assert_same(joined, made())
        assert (joined.path, joined.entry.tolist()) == ("in.root", [10, 11, 12])
        assert joined.hits.position.rho[0, 0] == 5.0  # vector behaviour survives
        with pytest.warns(ImplausibleWarning, match=r"'other\.root' has no reference, unlike 'in\.root': all events"):
            joined = concatenate([made(), made(reference=None, path="other.root")])
        assert (joined.reference, joined.path) == (None, "")


@pytest.mark.parametrize("function", [ak.num, ak.sum, ak.to_list, np.asarray])
def test_events_cannot_become_an_array(function):
    """Each of them is iterable again: `ak.num` never returned."""
    with pytest.raises(TypeError, match=r"Events cannot become an array; arrays are \.hits, \.tracks, "):
        function(made())


def test_events_in_a_list_cannot_become_an_array():
    """Awkward iterates over what a list holds without asking it for an array, and never returned."""
    with pytest.raises(TypeError, match="one event of a loop is not a list of events"):
        ak.from_iter([made()])
    assert [len(event) for event in made()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_tracks(b_field=2.0, px=ONE, py=ONE, omega=ONE, phi=ONE), "need px, py, pz and charge, or omega"),
        (lambda: made()[3], "event 3 of 3"),
        (lambda: made()[np.array([True])], "events are chosen by .* boolean index did not match"),
        (
            lambda: made()[made().hits.energy > 1],
            "events are chosen by a number, a slice, or a mask or list of numbers",
        ),
        (lambda: made()[[[0, 1]]], "of 3 events; found 2 dimensions"),
        (lambda: made()[ak.to_numpy(ak.max(ONE, axis=1) > 2)], "found masked elements: give them a value"),
        (lambda: concatenate([]), "no events to concatenate"),
        (lambda: concatenate([made(), made(detector=load_detector("cld"))]), "different detectors"),
        (lambda: made(tracks=made().tracks[:2]), "tracks has 2 events, hits have 3"),
        (lambda: made(entry=np.zeros(2)), r"entry has shape \(2,\), expected \(3,\)"),
        (lambda: made(truth=None), "links need the truth particles"),
        (lambda: made(detector="ild_g4"), r"expected a detector, of pflow\.load_detector; found str"),
        (
            lambda: made(hits=ak.zip({"energy": ONE, "x": ONE})),
            r"hits lack position: pflow\.event\.schema has functions",
        ),
        (lambda: made(hits=np.zeros((3, 2))), r"hits lack energy, position: pflow\.event\.schema has functions"),
        (lambda: keep_hits(made(), np.array([True])), "1 values for 3 objects"),
        (lambda: keep_hits(made(), made().hits.energy[[0, 2, 1]] > 0), "the mask is of other events"),
        (lambda: keep_hits(made(), np.array([0, 1, 2])), "expected a mask, .* found numbers of type int64"),
        (lambda: make_truth(pdg=INDEX, charge=INDEX, **MOMENTUM), "missing 1 required keyword-only argument: 'mass'"),
        (lambda: made(hits=ak.mask(made().hits, ONE > 1)).violations(), r"objects that are None: choose with hits\["),
        (lambda: make_particles(pdg=INDEX, charge=INDEX, E=ONE), "particles have no E; known are pdg, charge, energy"),
        (lambda: make_hits(energy=ONE, x=ONE, y=ONE), "hits need z;"),
        (lambda: make_hits(energy=[1], x=[1], y=[1], z=[1]), r"hits: energy must be lists of numbers, \[event"),
        (lambda: make_particles(pdg=INDEX, charge=0, energy=ONE, **MOMENTUM), "particles: charge must be lists"),
        (lambda: Reconstruction(particles=made().hits, event=[0] * 3, flags=[0] * 3), "particles lack charge, pdg: "),
        (lambda: made()["hits"], r"parts by attributes such as \.hits; found 'hits'"),
        (lambda: made()[0, 1], r"parts by attributes such as \.hits; found \(0, 1\)"),
    ],
)
def test_inconsistent_parts_and_what_is_not_there_are_refused(make, message):
    with pytest.raises((ValueError, IndexError, TypeError), match=message):
        make()


BAD = ak.Array([[1.0, np.nan], [], [3.0]])
MOMENTUM = {"px": ONE, "py": ONE, "pz": ONE}


def hits_of(**columns: ak.Array) -> ak.Array:
    return make_hits(**({"energy": ONE, "x": ONE, "y": ONE, "z": ONE} | columns))


def truth_of(**columns: ak.Array) -> ak.Array:
    return make_truth(**({"pdg": INDEX, "mass": ONE, "charge": ONE} | MOMENTUM | columns))


class TestValidate:
    def test_good_events_have_no_violations_nor_have_unknown_times(self):
        assert made(hits=hits_of(time=BAD)).violations() == []
        events = made()
        assert events.violations() == []
        assert events.validate() is events

    @pytest.mark.parametrize(
        ("part", "field", "message"),
        [
            (hits_of(energy=BAD), "hits.energy", "number, found nan at index 1"),
            (hits_of(energy=-ONE), "hits.energy", "at least 0 GeV, found -1.0"),
            (hits_of(subdetector=INDEX + 3), "hits.subdetector", "0 to 3, a calorimeter .*, found 4 at index 1"),
            (make_tracks(b_field=1.0, charge=BAD, **MOMENTUM), "tracks.charge", "expected a finite number"),
            (truth_of(mass=BAD), "truth.rest_mass", "expected a finite number"),
            (truth_of(parent=INDEX * 2), "truth.parent", "-1 or the index of a particle, found 2 at index 1"),
            (make_particles(pdg=INDEX, charge=ONE, energy=-ONE, **MOMENTUM), "reference.energy", "at least 0 GeV"),
            (hits_of(energy=1e8 * ONE), "hits.energy", "at most 100000 GeV, found 100000000"),
            (hits_of(x=-1e8 * ONE), "hits.position.x", r"at most 1e\+07 mm, found -100000000"),
            (hits_of(layer=70000 + INDEX), "hits.layer", "at most 65535, found 70000"),
            (truth_of(px=1e8 * ONE), "truth.energy", r"at most 1e\+07 GeV"),
            (make_links(source=INDEX + 1, particle=INDEX), "hit_links.source", "another event may, found 2 at index 1"),
            (make_links(source=INDEX, particle=INDEX - 1), "track_links.particle", "found -1 at index 0"),
            (make_links(source=INDEX, particle=INDEX, weight=BAD), "hit_links.weight", "a finite number, found nan"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_each_violation_is_named(self, part, field, message):
        with pytest.raises(InputError, match=rf"in\.root, entry 1[02], '{field}': .*{message}"):
            made(**{field.partition(".")[0]: part}).validate()

    def test_one_violation_for_each_event_and_field(self):
        events = made(hits=hits_of(energy=-ONE))
        violations = events.violations()
        assert [(v.index, v.field) for v in violations] == [(0, "hits.energy"), (2, "hits.energy")]
        assert "and 1 more like it" in violations[0].message
        with pytest.raises(InputError, match=r"entry 10, 'hits\.energy': .*\(and 1 more violations\)") as caught:
            events.validate()
        assert (caught.value.entry, caught.value.field) == (10, "hits.energy")


def bare() -> Reconstruction:
    """Three events with two, no and one particle."""
    pdg = ak.Array([[22, 11], [], [130]])
    return Reconstruction(
        particles=make_particles(pdg=pdg, **dict.fromkeys(("charge", "energy", "px", "py", "pz", "score"), ONE)),
        event=np.array([5, 6, 7]),
        flags=np.array([0, 1, 2], dtype=np.uint32),
    )


def linked() -> Reconstruction:
    """As `bare`, with scores, covariances and links."""
    links = make_links(source=ak.Array([[0, 1], [], [4]]), particle=ak.Array([[1, 0], [], [0]]))
    particles = bare().particles
    for name, width in (("scores", 5), ("covariance", 10)):
        values = np.arange(3.0 * width, dtype=np.float32).reshape(3, width)
        particles = ak.with_field(particles, ak.unflatten(values, [2, 0, 1]), name)
    return dataclasses.replace(bare(), particles=particles, hit_links=links, track_links=links)


@pytest.mark.parametrize("index", [[2], slice(2, None), np.array([False, False, True]), 2, -1], ids=str)
def test_chosen_events_keep_all_parts(index):
    reco, part = linked(), linked()[index]
    assert (len(part), part.event.tolist(), part.flags.tolist(), part.name) == (1, [7], [2], "PFlow")
    for name in ("particles", "hit_links", "track_links"):
        assert getattr(part, name).to_list() == getattr(reco, name)[2:].to_list(), name
    assert np.shares_memory(reco[np.ones(3, dtype=bool)].event, reco.event)  # of all there is no copy


def test_a_reconstruction_of_lists_is_iterated_shown_and_pickled(same_reco):
    assert [reco.event.tolist() for reco in linked()] == [[5], [6], [7]]
    assert repr(linked()) == "<Reconstruction: 3 events by PFlow, 3 particles, 3 hit_links, 3 track_links>"
    copied = pickle.loads(pickle.dumps(linked()))
    assert same_reco(copied, linked())
    assert copied.particles.pt.to_list() == linked().particles.pt.to_list()
    reco = dataclasses.replace(bare(), event=[5, 6, 7], flags=[0, 1, 2])
    assert (reco.event.dtype, reco.flags.dtype) == (np.int64, np.uint32)
    assert reco[[2]].flags.tolist() == [2]


@pytest.mark.parametrize("field", ["event", "hit_links"])
def test_parts_of_a_reconstruction_have_its_length(field):
    with pytest.raises(ValueError, match=f"{field} has 2 events, particles have 3"):
        dataclasses.replace(linked(), **{field: getattr(linked(), field)[:2]})


@pytest.mark.parametrize("reco", [bare(), linked()], ids=["bare", "linked"])
def test_reconstructions_are_joined_without_parts_that_some_lack(reco, same_reco):
    assert same_reco(concatenate_reconstructions([reco[:1], reco[1:1], reco[1:]]), reco)
    joined = concatenate_reconstructions([linked(), bare()])
    assert (joined.hit_links, joined.track_links) == (None, None)
    assert joined.particles.fields == bare().particles.fields


@pytest.mark.parametrize("empty_first", [True, False])
def test_a_chunk_without_particles_drops_nothing(empty_first, same_reco):
    """The model writes no optional fields for events without hits and tracks."""
    reco = linked()
    fields = ["pdg", "charge", "energy", "rest_mass", "px", "py", "pz"]
    empty = dataclasses.replace(reco[1:2], particles=bare().particles[1:2][fields], hit_links=None, track_links=None)
    assert ak.num(empty.particles).to_list() == [0]
    joined = concatenate_reconstructions([empty, reco] if empty_first else [reco, empty])
    assert same_reco(joined[1:] if empty_first else joined[:-1], reco)
    assert len(joined.track_links) == 4


@pytest.mark.parametrize(("field", "value"), [("energy", np.nan), ("covariance", np.inf), ("px", np.nan)])
def test_events_with_a_number_that_is_not_finite_are_known(field, value):
    good = linked()
    assert good.finite().tolist() == [True, True, True]
    values = jagged.columns(good.particles)[field].copy()
    values[2] = value
    particles = jagged.replaced(good.particles, {field: values})
    assert dataclasses.replace(good, particles=particles).finite().tolist() == [True, True, False]


def test_track_momentum_by_the_particles_that_have_it(make_event):
    """Tracks of 3 GeV: one of a pion, two thirds of one of a photon, one of no particle."""
    events = make_event([(211, 3.0)], tracks=[(0, 3.0)] * 3)
    columns = {"pdg": [[211, 22]], "charge": [[1, 0]], "energy": [[3, 9]]}
    columns |= {"px": [[1, 9]], "py": [[2, 0]], "pz": [[2, 0]]}
    links = make_links(source=[[0, 1]], particle=[[0, 1]], weight=[[1.0, 2 / 3]], normalise=False)
    reco = Reconstruction(particles=make_particles(**columns), event=[0], flags=[0], track_links=links)
    np.testing.assert_allclose(reco.track_momentum(events), [[9.0, 2.0, 4.0]], rtol=1e-6)
    without = dataclasses.replace(reco, track_links=None)
    np.testing.assert_allclose(without.track_momentum(events), [[9.0, np.nan, 6.0]], rtol=1e-6)
