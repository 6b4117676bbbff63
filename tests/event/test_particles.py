import copy
import dataclasses
import pickle

import awkward as ak
import numpy as np
import pytest

from pflow.event.build import make_links, make_particles
from pflow.event.events import Flag
from pflow.event.particles import Reconstruction, concatenate

ONE = ak.Array([[1.0, 2.0], [], [3.0]])


def bare() -> Reconstruction:
    """Three events with two, no and one particle."""
    pdg = ak.Array([[22, 11], [], [130]])
    return Reconstruction(
        particles=make_particles(pdg=pdg, charge=ONE, energy=ONE, px=ONE, py=ONE, pz=ONE, score=ONE),
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


@pytest.mark.parametrize(
    ("where", "kept"),
    [(slice(1, None), [1, 2]), (np.array([True, False, True]), [0, 2])],
    ids=["range", "mask"],
)
def test_some_of_the_events_take_everything_with_them(where, kept):
    whole, part = linked(), linked()[where]
    assert len(part) == 2
    assert (part.event.tolist(), part.flags.tolist(), part.name) == ([5 + k for k in kept], kept, "PFlow")
    for name in ("particles", "hit_links", "track_links"):
        assert getattr(part, name).to_list() == [getattr(whole, name)[k].to_list() for k in kept], name


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda reco: pickle.loads(pickle.dumps(reco))])
def test_copies_hold_the_same(again, same_reco):
    copied = again(linked())
    assert same_reco(copied, linked())
    assert copied.particles.pt.to_list() == linked().particles.pt.to_list()


@pytest.mark.parametrize("field", ["event", "hit_links"])
def test_lengths_must_agree(field):
    whole = linked()
    with pytest.raises(ValueError, match=f"{field} has 2 events, particles have 3"):
        dataclasses.replace(whole, **{field: getattr(whole, field)[:2]})


@pytest.mark.parametrize("whole", [bare(), linked()], ids=["bare", "linked"])
def test_chunks_join_to_the_whole(whole):
    joined = concatenate([whole[:1], whole[1:1], whole[1:]])
    assert joined.particles.to_list() == whole.particles.to_list()
    assert joined.particles.type == whole.particles.type
    assert (joined.event.tolist(), joined.flags.tolist()) == (whole.event.tolist(), whole.flags.tolist())
    assert whole.hit_links is None or joined.hit_links.to_list() == whole.hit_links.to_list()


def test_what_not_all_chunks_have_is_dropped():
    joined = concatenate([linked(), bare()])
    assert (joined.hit_links, joined.track_links) == (None, None)
    assert joined.particles.fields == bare().particles.fields


@pytest.mark.parametrize("empty_first", [True, False])
def test_a_chunk_without_particles_drops_nothing(empty_first):
    """As of an event without hits and tracks, of which the model says nothing."""
    whole = linked()
    fields = ["pdg", "charge", "energy", "rest_mass", "px", "py", "pz"]
    empty = dataclasses.replace(whole[1:2], particles=bare().particles[1:2][fields], hit_links=None, track_links=None)
    assert ak.num(empty.particles).to_list() == [0]
    joined = concatenate([empty, whole] if empty_first else [whole, empty])
    kept = joined[1:] if empty_first else joined[:-1]
    assert joined.particles.fields == whole.particles.fields
    assert kept.particles.to_list() == whole.particles.to_list()
    assert kept.hit_links.to_list() == whole.hit_links.to_list()
    assert len(joined.track_links) == 4


@pytest.mark.parametrize(("field", "value"), [("energy", np.nan), ("covariance", np.inf), ("momentum", np.nan)])
def test_events_with_a_number_that_is_not_finite_are_known(field, value):
    good = linked()
    assert good.finite().tolist() == [True, True, True]
    holder = good.particles.momentum if field == "momentum" else good.particles
    name = "px" if field == "momentum" else field
    values = ak.to_numpy(ak.flatten(holder[name], axis=1)).copy()
    values[2] = value
    changed = ak.with_field(holder, ak.unflatten(values, [2, 0, 1]), name)
    particles = ak.with_field(good.particles, changed, "momentum") if field == "momentum" else changed
    assert dataclasses.replace(good, particles=particles).finite().tolist() == [True, True, False]


def test_an_emptied_event_keeps_its_place_and_is_flagged():
    bad = np.array([True, False, False])
    got = linked().emptied(bad, Flag.NOT_FINITE)
    assert ak.num(got.particles).tolist() == [0, 0, 1]
    assert ak.num(got.hit_links).tolist() == ak.num(got.track_links).tolist() == [0, 0, 1]
    assert got.flags.tolist() == [Flag.NOT_FINITE, 1, 2]
    same = bare()
    assert same.emptied(~bad & bad, Flag.NOT_FINITE) is same


def test_one_event_is_taken_by_its_index_as_events_are():
    whole = linked()
    for one in (whole[2], whole[-1], list(whole)[2]):
        assert (len(one), one.event.tolist()) == (1, [7])
        assert one.particles.to_list() == whole.particles[2:].to_list()
    with pytest.raises(IndexError, match="event 3 of 3"):
        whole[3]
    assert repr(whole) == "<Reconstruction: 3 events by PFlow, 3 particles, 3 hit_links, 3 track_links>"


def test_momentum_of_tracks_is_told_by_what_has_it(make_event):
    """Tracks of 3 GeV: one of a pion, one to two thirds of a photon, one of nothing."""
    events = make_event([(211, 3.0)], tracks=[(0, 3.0)] * 3)
    columns = {"pdg": [[211, 22]], "charge": [[1, 0]], "energy": [[3, 9]]}
    columns |= {"px": [[1, 9]], "py": [[2, 0]], "pz": [[2, 0]]}
    links = make_links(source=[[0, 1]], particle=[[0, 1]], weight=[[1.0, 2 / 3]], normalise=False)
    found = Reconstruction(particles=make_particles(**columns), event=[0], flags=[0], track_links=links)
    np.testing.assert_allclose(found.track_momentum(events), [[9.0, 2.0, 4.0]], rtol=1e-6)
    without = dataclasses.replace(found, track_links=None)
    np.testing.assert_allclose(without.track_momentum(events), [[9.0, np.nan, 6.0]], rtol=1e-6)
