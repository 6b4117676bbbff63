from collections.abc import Callable
from pathlib import Path

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.events import Events
from pflow.io.open import read_events


@pytest.fixture(scope="session")
def events(sample_dir: Path) -> Events:
    """Six hadronic Z decays in ILD."""
    return read_events(sample_dir / "zqq_test_small.root")


@pytest.fixture(scope="session")
def particle_energies() -> Callable[..., ak.Array]:
    """Energy in hits of each true particle by the links, [event, particle], GeV."""

    def energies(events: Events) -> ak.Array:
        counts = jagged.count(events.truth)
        hit = jagged.global_index(events.hit_links.source, jagged.count(events.hits))
        particle = jagged.global_index(events.hit_links.particle, counts)
        weights = jagged.flat(events.hit_links.weight) * jagged.flat(events.hits.energy)[hit]
        return jagged.unflatten(np.bincount(particle, weights, int(counts.sum())), counts)

    return energies
