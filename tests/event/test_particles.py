import dataclasses
import pickle

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.events import Reconstruction, concatenate_reconstructions
from pflow.event.schema import make_links, make_particles

NUMBERS = ak.Array([[1.0, 2.0], [], [3.0]])


def bare() -> Reconstruction:
    """Three events with two, no and one particle."""
    pdg = ak.Array([[22, 11], [], [130]])
    return Reconstruction(
        particles=make_particles(pdg=pdg, **dict.fromkeys(("charge", "energy", "px", "py", "pz", "score"), NUMBERS)),
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
def test_lengths_must_agree(field):
    with pytest.raises(ValueError, match=f"{field} has 2 events, particles have 3"):
        dataclasses.replace(linked(), **{field: getattr(linked(), field)[:2]})


@pytest.mark.parametrize("reco", [bare(), linked()], ids=["bare", "linked"])
def test_concatenate_inverts_slicing_and_drops_missing_parts(reco, same_reco):
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
