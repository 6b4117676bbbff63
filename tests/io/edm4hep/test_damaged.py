"""Damaged EDM4hep files: an `InputError` names file and fault, and bad entries can be skipped."""

from types import SimpleNamespace

import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.event.events import BadEntriesWarning, Flag
from pflow.event.particles import Reconstruction
from pflow.io.open import read_events
from pflow.io.particles_root import RecoWriter, iterate_reco, read_provenance, read_reco
from pflow.io.root import open_tree

SHORTENED = (
    "A1.energy",
    "MCParticles.PDG",
    "MCParticles.parents_begin",
    "HitLinks.weight",
    "_HitLinks_to.collectionID",
    "_Tracks_trackStates.omega",
)


@pytest.mark.parametrize("member", SHORTENED)
def test_columns_of_unequal_length_make_a_bad_entry(write, content, toy, member):
    values = list(content[member][0])
    content[member] = [[*values, values[-1]] if "_" in member else values[:-1], content[member][1]]
    path = write(content)
    with pytest.raises(InputError, match=r"events\.root, entry 0, '") as caught:
        read_events(path, detector=toy)
    assert caught.value.entry == 0
    with pytest.warns(BadEntriesWarning, match="1 of 2 entries cannot be used"):
        events = read_events(path, detector=toy, on_error="skip")
    assert ((events.flags & Flag.BAD_INPUT) > 0).tolist() == [True, False]
    assert events.hits.energy.tolist() == [[], [5.0]]


def test_an_rntuple_of_before_version_1_is_named():
    kind = "ROOT::Experimental::RNTuple"
    old = SimpleNamespace(classnames=lambda recursive: {"events;1": kind}, classname_of=lambda name: kind)
    with pytest.raises(InputError, match=r"old\.root, 'events': 'events' is an RNTuple from before version 1.0"):
        open_tree(old, "events", "old.root")


@pytest.fixture(scope="module")
def reco(tmp_path_factory, sample_dir) -> bytes:
    """An RNTuple of reconstructed particles, copied from the sample."""
    events = read_events(sample_dir / "multi_test_small.root")
    path = tmp_path_factory.mktemp("reco") / "reco.root"
    with RecoWriter(path, provenance={"x": 1}, format="rntuple") as writer:
        writer.extend(Reconstruction(particles=events.reference, event=events.event, flags=events.flags))
    return path.read_bytes()


@pytest.mark.parametrize("part", ["Header", "Footer", "anywhere"])
def test_a_damaged_rntuple_is_an_input_error_or_reads(reco, tmp_path, part):
    path = tmp_path / "reco.root"
    path.write_bytes(reco)
    with uproot.open(path) as file:
        anchor = file["events"]._members
    begin, size = anchor.get(f"fSeek{part}", 0), anchor.get(f"fNBytes{part}", len(reco))
    generator = np.random.default_rng(4)
    refused = 0
    for _ in range(20):
        damaged = bytearray(reco)
        for place in begin + generator.integers(size, size=int(generator.integers(1, 4))):
            damaged[place] = int(generator.integers(256))
        path.write_bytes(damaged)
        for read in (read_reco, read_provenance, lambda where: list(iterate_reco(where)), read_events):
            try:
                read(path)
            except InputError:
                refused += 1
    assert refused > 5
