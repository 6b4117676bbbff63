from __future__ import annotations

import pytest

from pflow.model.api import architecture, build_network
from pflow.model.pointing.loss import PointingLoss
from pflow.model.pointing.network import PointingTransformer
from pflow.model.translation.loss import ParticleLoss
from pflow.model.translation.network import ParticleTransformer

SIZES = {"n_charge": 3, "n_pdg": 4, "hit_features": 4}
ALL_SIZES = {
    **SIZES,
    "track_features": 0,
    "tracker_hit_features": 0,
    "n_subdetectors": 2,
    "masses": (0.0, 0.1, 0.9, 0.5),
    "charged": (False, True, False, True),
    "energy_mean": 1.0,
    "energy_std": 0.5,
}
"""All that a tokeniser decides."""
SMALL = {"width": 16, "heads": 2}


@pytest.mark.parametrize("named", [{}, {"architecture": "translation"}])
def test_translation_is_the_default(named):
    assert isinstance(build_network({**SIZES, **SMALL, **named}), ParticleTransformer)


@pytest.mark.parametrize(("name", "kind"), [("translation", ParticleTransformer), ("pointing", PointingTransformer)])
def test_each_network_takes_the_sizes_it_has_arguments_for(name, kind):
    network = build_network({"architecture": name, **SMALL}, ALL_SIZES)
    assert type(network) is kind


def test_arguments_go_before_sizes():
    network = build_network({"architecture": "pointing", **SMALL, "energy_mean": 2.0}, ALL_SIZES)
    assert (network.energy_mean, network.energy_std) == (2.0, 0.5)


def test_a_source_that_a_network_does_not_read_is_an_error():
    sizes = {**ALL_SIZES, "tracker_hit_features": 3}
    with pytest.raises(ValueError, match="tracker_hit_features: PointingTransformer does not read them"):
        build_network({"architecture": "pointing", **SMALL}, sizes)


@pytest.mark.parametrize(("name", "loss"), [("translation", ParticleLoss), ("pointing", PointingLoss)])
def test_the_architecture_of_a_network_is_found(name, loss):
    network = build_network({"architecture": name, **SMALL}, ALL_SIZES)
    assert architecture(network) is architecture(name)
    assert architecture(network).loss is loss


def test_an_option_that_a_network_does_not_have_is_an_error():
    with pytest.raises(TypeError, match="special"):
        build_network({"architecture": "pointing", **SMALL, "special": "flags"}, ALL_SIZES)


def test_an_unknown_architecture_is_an_error_that_names_the_known_ones():
    with pytest.raises(ValueError, match="no architecture 'recurrent': expected one of translation, pointing"):
        build_network({**SIZES, "architecture": "recurrent"})


def test_the_given_arguments_stay_as_they_are():
    arguments = {**SIZES, "architecture": "translation"}
    build_network(arguments)
    assert arguments == {**SIZES, "architecture": "translation"}


def test_teaching_without_a_target_is_an_error(make_batch):
    network = build_network({"architecture": "pointing", **SMALL}, ALL_SIZES)
    with pytest.raises(ValueError, match="target: the batch has none"):
        architecture("pointing").teach(network, PointingLoss(), make_batch([2]))
