from collections.abc import Callable
from pathlib import Path

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import Links
from pflow.io.open import read_events


@pytest.fixture(scope="session")
def events(sample_dir: Path) -> Events:
    """Six hadronic Z decays in ILD."""
    return read_events(sample_dir / "zqq_test_small.root")


@pytest.fixture(scope="session")
def particle_energies() -> Callable[..., ak.Array]:
    """Energy in hits of each true particle by the links, [event, particle], GeV."""

    def energies(events: Events) -> ak.Array:
        counts, links = jagged.count(events.truth), Links.of(events.hit_links)
        weights = links.weight * jagged.flat(events.hits.energy)[links.flat_source(jagged.count(events.hits))]
        return jagged.unflatten(np.bincount(links.flat_particle(counts), weights, int(counts.sum())), counts)

    return energies
