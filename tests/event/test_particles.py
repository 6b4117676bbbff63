from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.event.build import make_links, make_particles
from pflow.event.particles import Reconstruction, concatenate


def made() -> Reconstruction:
    one = ak.Array([[1.0, 2.0], [], [3.0]])
    return Reconstruction(
        particles=make_particles(pdg=ak.Array([[22, 11], [], [130]]), charge=one, energy=one, px=one, py=one, pz=one),
        event=np.array([5, 6, 7]),
        flags=np.array([0, 1, 2], dtype=np.uint32),
    )


def test_a_slice_takes_everything_with_it():
    part = made()[1:]
    assert len(part) == 2
    assert part.particles.pdg.to_list() == [[], [130]]
    assert (part.event.tolist(), part.flags.tolist(), part.name) == ([6, 7], [1, 2], "PFlow")


@pytest.mark.parametrize("field", ["event", "flags"])
def test_lengths_must_agree(field):
    whole = made()
    values = {"event": whole.event, "flags": whole.flags} | {field: getattr(whole, field)[:2]}
    with pytest.raises(ValueError, match=f"{field} has 2 events, particles have 3"):
        Reconstruction(particles=whole.particles, **values)


def test_chunks_join_to_the_whole():
    whole = made()
    joined = concatenate([whole[:1], whole[1:1], whole[1:]])
    assert joined.particles.pdg.to_list() == whole.particles.pdg.to_list()
    assert joined.particles.momentum.px.to_list() == whole.particles.momentum.px.to_list()
    assert joined.event.tolist() == whole.event.tolist()
    assert joined.flags.tolist() == whole.flags.tolist()


def test_nothing_cannot_be_joined():
    with pytest.raises(ValueError, match="no reconstructions"):
        concatenate([])


def linked() -> Reconstruction:
    """As `made`, with scores, covariances and links."""
    links = make_links(source=ak.Array([[0, 1], [], [4]]), particle=ak.Array([[1, 0], [], [0]]))
    arrays = {
        name: ak.unflatten(np.arange(3.0 * width).reshape(3, width), [2, 0, 1])
        for name, width in (("scores", 5), ("covariance", 10))
    }
    one = ak.Array([[1.0, 2.0], [], [3.0]])
    return dataclasses.replace(
        made(),
        particles=make_particles(pdg=one, charge=one, energy=one, px=one, py=one, pz=one, **arrays),
        hit_links=links,
        track_links=links,
    )


def test_a_slice_takes_the_links_with_it():
    part = linked()[1:]
    assert part.hit_links is not None
    assert part.hit_links.source.to_list() == [[], [4]]
    assert part.track_links is not None
    assert part.track_links.particle.to_list() == [[], [0]]


def test_a_mask_takes_some_of_the_events():
    part = linked()[np.array([True, False, True])]
    assert part.event.tolist() == [5, 7]
    assert part.hit_links is not None
    assert part.hit_links.source.to_list() == [[0, 1], [4]]


def test_links_must_be_of_all_events():
    with pytest.raises(ValueError, match="hit_links has 2 events, particles have 3"):
        dataclasses.replace(made(), hit_links=linked()[:2].hit_links)


def test_chunks_join_with_their_links_and_arrays():
    whole = linked()
    joined = concatenate([whole[:1], whole[1:]])
    assert joined.hit_links is not None
    assert whole.hit_links is not None
    assert joined.hit_links.to_list() == whole.hit_links.to_list()
    assert joined.particles.covariance.to_list() == whole.particles.covariance.to_list()
    assert joined.particles.type == whole.particles.type


def test_what_not_all_chunks_have_is_dropped():
    joined = concatenate([linked(), made()])
    assert (joined.hit_links, joined.track_links) == (None, None)
    assert joined.particles.fields == made().particles.fields


@pytest.mark.parametrize("field", ["scores", "covariance"])
def test_an_array_of_another_length_is_refused(field):
    one = ak.Array([[1.0, 2.0], []])
    values = {field: ak.Array([[[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]], []])}
    with pytest.raises(ValueError, match=rf"{field} of all particles has shape \(2, 3\), expected"):
        make_particles(pdg=one, charge=one, energy=one, px=one, py=one, pz=one, **values)
