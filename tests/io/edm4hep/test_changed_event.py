"""CLD events as other software would write them: one change at a time."""

import warnings

import awkward as ak
import numpy as np
import pytest

from pflow.event.truth import select_targets
from pflow.io.open import read_events
from pflow.metrics.evaluation import visible_truth


@pytest.fixture
def changed(rewrite, cld_path):
    """Writes the events with some members set, in the shape that they have, and reads it."""
    return lambda members, **options: read_events(rewrite(cld_path, members), **options)


def described(targets):
    """PDG codes and energies of the targets of each event, GeV."""
    return ak.zip((targets.particles.pdg, ak.round(targets.particles.energy, 4))).to_list()


@pytest.mark.parametrize("pdg", [1000022, 39, 9900012])
def test_particles_that_no_detector_sees_are_no_energy(changed, cld_rec, pdg):
    lost = select_targets(cld_rec).dropped.index[0, 0]

    def energy(code):
        events = changed({"MCParticles.PDG": lambda values: np.where(np.arange(len(values)) == lost, code, values)})
        return visible_truth(events, select_targets(events)).energy.sum()

    assert energy(pdg) == energy(12)
    assert energy(pdg) < energy(22) - 0.05


@pytest.mark.parametrize("member", ["energy", "momentum.x", "mass"])
def test_bad_reference_particles_leave_the_event_usable(changed, cld_rec, member):
    def spoiled(values):
        values[0] = np.nan
        return values

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events = changed({f"PandoraPFOs.{member}": spoiled})
    assert described(select_targets(events)) == described(select_targets(cld_rec))
    assert events.hits.energy.to_list() == cld_rec.hits.energy.to_list()
