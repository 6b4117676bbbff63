from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

from pflow.reconstruction import Reconstruction, concatenate
from pflow.records import make_particles


def made() -> Reconstruction:
    one = ak.Array([[1.0, 2.0], [], [3.0]])
    return Reconstruction(
        particles=make_particles(pdg=ak.Array([[22, 11], [], [130]]), charge=one, energy=one, px=one, py=one, pz=one),
        event=np.array([5, 6, 7]),
        flags=np.array([0, 1, 2], dtype=np.uint32),
    )


def test_a_slice_takes_everything_with_it() -> None:
    part = made()[1:]
    assert len(part) == 2
    assert part.particles.pdg.to_list() == [[], [130]]
    assert (part.event.tolist(), part.flags.tolist(), part.name) == ([6, 7], [1, 2], "PFlow")


@pytest.mark.parametrize("field", ["event", "flags"])
def test_lengths_must_agree(field: str) -> None:
    whole = made()
    values = {"event": whole.event, "flags": whole.flags} | {field: getattr(whole, field)[:2]}
    with pytest.raises(ValueError, match=f"{field} has 2 events, particles have 3"):
        Reconstruction(particles=whole.particles, **values)


def test_chunks_join_to_the_whole() -> None:
    whole = made()
    joined = concatenate([whole[:1], whole[1:1], whole[1:]])
    assert joined.particles.pdg.to_list() == whole.particles.pdg.to_list()
    assert joined.particles.momentum.px.to_list() == whole.particles.momentum.px.to_list()
    assert joined.event.tolist() == whole.event.tolist()
    assert joined.flags.tolist() == whole.flags.tolist()


def test_nothing_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="no reconstructions"):
        concatenate([])
