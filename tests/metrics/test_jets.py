import math

import awkward as ak
import pytest

from pflow.errors import ConfigError
from pflow.event.schema import make_particles
from pflow.io.open import read_events
from pflow.metrics import jets as module
from pflow.metrics.evaluation import AlgorithmMetrics
from pflow.metrics.jets import ALGORITHMS, JetMetrics, find_jets, true_jets

# Two back-to-back pairs of photons, each pair 2 degrees wide
DIJET = [(22, 20.0, 90, -1), (22, 20.0, 90, 1), (22, 25.0, 90, 179), (22, 15.0, 90, 181)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_pairs_become_jets_without_a_banner_of_fastjet(make_table, algorithm, capfd):
    jets = find_jets(make_table([DIJET]), **ALGORITHMS[algorithm][1])
    assert jets.counts.tolist() == [2]
    assert sorted(jets.energy.tolist()) == pytest.approx([40, 40])
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("radius", "n_jets"), [(0.4, 2), (0.7, 1)])
def test_radius_decides(make_table, radius, n_jets):
    pair = make_table([[(22, 20.0, 90, 0), (22, 20.0, 90, math.degrees(0.55))]])
    assert find_jets(pair, radius=radius).counts.tolist() == [n_jets]


@pytest.mark.parametrize("n_jets", [1, 2, 3, 4])
def test_an_event_has_its_number_of_exclusive_jets(make_table, n_jets):
    jets = find_jets(make_table([[], DIJET, DIJET[:1]]), n_jets=n_jets)
    assert jets.counts.tolist() == [0, n_jets, 1 if n_jets == 1 else 0]
    assert jets.energy[:n_jets].sum() == pytest.approx(80)


def test_jets_of_particles_are_four_momenta():
    photons = {"pdg": [22, 22], "charge": [0, 0], "energy": [5, 4], "px": [3, 0], "py": [4, -4], "pz": [0, 0]}
    particles = make_particles(**{name: [values, []] for name, values in photons.items()})
    for jets in (find_jets(particles, n_jets=2), find_jets(particles.to_rhophietatau(), radius=1.0)):
        jets = jets[ak.argsort(jets.energy, ascending=False)]
        assert ak.num(jets).to_list() == [2, 0]
        assert (jets.energy[0].to_list(), jets.pt[0].to_list()) == (pytest.approx([5, 4]), pytest.approx([5, 4]))


@pytest.mark.parametrize("options", [{"n_jets": 2}, {"radius": 0.4}])
def test_jets_are_the_sums_of_their_constituents(sample_dir, options):
    particles = read_events(sample_dir / "zqq_test_small.root", entry_stop=3).reference
    particles = ak.concatenate([particles, particles[:1, :0]])  # and an event without any
    jets, constituents = find_jets(particles, **options, constituents=True)
    assert (ak.num(jets) == ak.num(constituents)).to_list() == [True] * 4
    assert ak.num(jets).to_list()[-1] == 0
    for event in range(3):
        index = ak.flatten(constituents[event])
        assert sorted(index.to_list()) == list(range(len(particles[event])))
        for jet, members in zip(jets[event], constituents[event], strict=True):
            assert ak.sum(particles[event][members].energy) == pytest.approx(jet.energy, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"n_jets": 2, "radius": 0.4}, {"n_jets": 0}, {"radius": 0.0}, {"radius": 4.0}])
def test_impossible_options_are_refused(make_table, options):
    with pytest.raises(ConfigError, match="n_jets"):
        find_jets(make_table([DIJET]), **options)


def test_what_has_no_momenta_is_refused_by_name(sample_dir):
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=2)
    for wrong, found in (
        (events, "Events"),
        (events.hits, r"an array of 2 \* var \* {energy"),
        (events.reference[0], r"an array of 2 \* Mom"),
    ):
        with pytest.raises(TypeError, match=rf"expected particles \[event, particle\], such as .*; found {found}"):
            find_jets(wrong, n_jets=2)


def test_response(make_table):
    # Jets of 40 and 40 GeV are reconstructed with 36 and 44 GeV: median 1, quartiles 0.95 and 1.05
    reco = [(22, 18.0, 90, -1), (22, 18.0, 90, 1), (22, 44.0, 90, 180)]
    metrics = JetMetrics()
    metrics.update(true_jets(make_table([DIJET])), make_table([reco]))
    for name in ALGORITHMS:
        result = metrics.result()[name]
        assert result["response_median"].value == pytest.approx(1.0, rel=1e-5)
        assert result["iqr_over_median"].value == pytest.approx(0.1, rel=1e-4)
        assert result["efficiency"].value == 1
        assert result["n_true"] == 2
        assert result["q68_deg"].value < 1


def test_angles_of_jets(make_table):
    """Jets turned by 1 degree in azimuth and one, not the other, by 0.5 in the polar angle."""
    turned = [(22, 20.0, 90, 1), (22, 20.0, 90.5, 181)]
    metrics = JetMetrics()
    metrics.update(true_jets(make_table([[(22, 20.0, 90, 0), (22, 20.0, 90, 180)]])), make_table([turned]))
    result = metrics.result()["genkt_r04"]
    assert result["median_deg"].value == pytest.approx(0.5 * (1 + math.hypot(1, 0.5)), rel=1e-3)
    assert result["phi_rms90_mrad"].value == pytest.approx(0, abs=1e-3)
    assert result["theta_rms90_mrad"].value == pytest.approx(1e3 * math.radians(0.25), rel=1e-3)


def test_jets_match_within_100_mrad_and_soft_ones_do_not_count(make_table):
    metrics = JetMetrics()
    true = make_table([[(22, 20.0, 90, 0), (22, 9.9, 90, 90)]])
    for angle in (0.11, 0.09):
        metrics.update(true_jets(true), make_table([[(22, 20.0, 90, math.degrees(angle))]]))
    result = metrics.result()["genkt_r04"]
    assert (result["n_true"], result["efficiency"].value) == (2, 0.5)


def test_without_the_package_metrics_have_no_jets(make_table, monkeypatch):
    monkeypatch.setattr(module, "available", lambda: False)
    with pytest.raises(ConfigError, match="pip install"):
        find_jets(make_table([DIJET]), radius=0.4)
    assert "jets" not in AlgorithmMetrics().result()
