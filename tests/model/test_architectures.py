from __future__ import annotations

import pytest

from pflow.model.architectures import build_network
from pflow.model.network import ParticleTransformer

SIZES = {"n_charge": 3, "n_pdg": 4, "hit_features": 4}


@pytest.mark.parametrize("named", [{}, {"architecture": "translation"}])
def test_translation_is_the_default(named):
    assert isinstance(build_network({**SIZES, "width": 16, "heads": 2, **named}), ParticleTransformer)


def test_an_unknown_architecture_is_an_error_that_names_the_known_ones():
    with pytest.raises(ValueError, match="no architecture 'recurrent': expected one of translation"):
        build_network({**SIZES, "architecture": "recurrent"})


def test_the_given_arguments_stay_as_they_are():
    arguments = {**SIZES, "architecture": "translation"}
    build_network(arguments)
    assert arguments == {**SIZES, "architecture": "translation"}
