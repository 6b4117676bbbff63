"""The same five events in the small EDM4hep files, and as podio itself wrote them."""

import awkward as ak
import numpy as np
import pytest

from pflow.io.open import read_events


@pytest.mark.parametrize("kind", ["small", "small_sim"])
def test_both_forms_hold_the_same(sample_dir, kind, assert_same):
    tree, ntuple = (read_events(sample_dir / f"cld_zqq_{kind}{form}.edm4hep.root") for form in ("", "_rntuple"))
    assert_same(tree, ntuple)


def test_simulated_hits_give_the_digitised_ones(sample_dir):
    digitised, simulated = (read_events(sample_dir / f"cld_zqq_small{kind}.edm4hep.root") for kind in ("", "_sim"))
    digitised = digitised[: len(simulated)]
    lost = ak.to_numpy(ak.num(digitised.hits) - ak.num(simulated.hits))
    assert lost.min() >= 0
    assert lost.max() <= 6  # just above the threshold
    np.testing.assert_allclose(ak.sum(simulated.hits.energy, axis=1), ak.sum(digitised.hits.energy, axis=1), rtol=5e-4)
    np.testing.assert_array_equal(ak.num(simulated.hit_links), ak.num(digitised.hit_links) - lost)
