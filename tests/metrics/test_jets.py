import dataclasses
import itertools
import math

import awkward as ak
import numpy as np
import pytest

import pflow
from pflow.errors import ConfigError, InputError, PflowError
from pflow.event.events import ImplausibleWarning
from pflow.event.jagged import Momentum4DArray
from pflow.event.schema import make_particles
from pflow.event.truth import select_targets
from pflow.io.open import read_events
from pflow.metrics import jets as module
from pflow.metrics.evaluation import AlgorithmMetrics, Evaluation, TrueEvents
from pflow.metrics.jets import (
    ALGORITHMS,
    ConfusionBudget,
    JetEnergyMetrics,
    JetMetrics,
    energy_by_kind,
    find_jets,
    jet_axes,
    thrust,
    true_jets,
)
from pflow.metrics.match import Matching, match_tables
from pflow.metrics.stats import Bootstrap

# Two back-to-back pairs of photons, each pair 2 degrees wide
DIJET = [(22, 20.0, 90, -1), (22, 20.0, 90, 1), (22, 25.0, 90, 179), (22, 15.0, 90, 181)]


@pytest.mark.parametrize(("radius", "n_jets"), [(0.4, 2), (0.7, 1)])
def test_radius_decides(make_table, radius, n_jets):
    pair = make_table([[(22, 20.0, 90, 0), (22, 20.0, 90, math.degrees(0.55))]])
    assert find_jets(pair, radius=radius).counts.tolist() == [n_jets]


@pytest.mark.parametrize("n_jets", [1, 2, 3, 4])
def test_an_event_has_its_number_of_exclusive_jets(make_table, n_jets):
    jets = find_jets(make_table([[], DIJET, DIJET[:1]]), n_jets=n_jets)
    assert jets.counts.tolist() == [0, n_jets, 1 if n_jets == 1 else 0]
    assert jets.energy[:n_jets].sum() == pytest.approx(80)


def test_jets_of_particles_are_four_momenta(monkeypatch):
    """Momenta that are held are read: `vector` takes longer to compute them than the clustering."""
    photons = {"pdg": [22, 22], "charge": [0, 0], "energy": [5, 4], "px": [3, 0], "py": [4, -4], "pz": [0, 0]}
    particles = make_particles(**{name: [values, []] for name, values in photons.items()})
    for jets in (find_jets(particles, n_jets=2), find_jets(particles.to_rhophietatau(), radius=1.0)):
        assert ak.num(jets).to_list() == [2, 0]
        assert (jets.energy[0].to_list(), jets.pt[0].to_list()) == (pytest.approx([5, 4]), pytest.approx([5, 4]))
    monkeypatch.setattr(Momentum4DArray, "px", property(lambda _: pytest.fail("computed")), raising=False)
    find_jets(particles, n_jets=2)


def test_particles_beside_their_products_are_said(sample_dir):
    events = read_events(sample_dir / "zqq_test_small.root", entry_stop=1)
    with pytest.warns(ImplausibleWarning, match=r"of status 0, 1 may be .* times: take pflow\.select_targets"):
        find_jets(events.truth, n_jets=2)
    find_jets(events.truth[events.truth.status == 1], n_jets=2)
    find_jets(select_targets(events, rule="entering").particles, n_jets=2)


@pytest.mark.parametrize("options", [{"n_jets": 2}, {"radius": 0.4}])
def test_jets_are_the_sums_of_their_constituents(sample_dir, options):
    particles = read_events(sample_dir / "zqq_test_small.root", entry_stop=3).reference
    particles = ak.concatenate([particles, particles[:1, :0]])  # and an event without any
    jets, constituents = find_jets(particles, **options, constituents=True)
    assert (ak.num(jets) == ak.num(constituents)).to_list() == [True] * 4
    assert ak.num(jets).to_list()[-1] == 0
    for event in range(3):
        assert jets.energy[event].to_list() == sorted(jets.energy[event].to_list(), reverse=True)
        index = ak.flatten(constituents[event])
        assert sorted(index.to_list()) == list(range(len(particles[event])))
        for jet, members in zip(jets[event], constituents[event], strict=True):
            assert ak.sum(particles[event][members].energy) == pytest.approx(jet.energy, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_jets": 2, "radius": 0.4},
        {"n_jets": 0},
        {"n_jets": 2.5},
        {"n_jets": True},
        {"radius": 0.0},
        {"radius": 4.0},
    ],
)
def test_impossible_options_are_refused(make_table, options):
    said = f"a whole n_jets .*, found {next(iter(options.values()))}" if len(options) == 1 else "either n_jets"
    with pytest.raises(ConfigError, match=said):
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
    with pytest.raises(ValueError, match="objects that are None: choose with"):
        find_jets(events.reference.mask[events.reference.energy > 1], n_jets=2)
    with pytest.raises(TypeError, match="expected radius, a number in rad; found str"):
        find_jets(events.reference, radius="0.4")
    momenta = events.reference[["energy", "px", "py", "pz"]]
    with pytest.raises(InputError, match="entry 0, 'px': particles: expected finite numbers, found inf"):
        find_jets(ak.with_field(momenta, np.inf * momenta.energy, "px"), radius=np.float32(0.4))


def test_response_of_pairs_that_become_jets_without_a_banner_of_fastjet(make_table, capfd):
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
    assert capfd.readouterr().out == ""


def test_angles_of_jets_that_match_within_100_mrad(make_table):
    """Jets turned by 1 degree in azimuth and one, not the other, by 0.5 in the polar angle."""
    turned = [(22, 20.0, 90, 1), (22, 20.0, 90.5, 181)]
    metrics = JetMetrics()
    metrics.update(true_jets(make_table([[(22, 20.0, 90, 0), (22, 20.0, 90, 180)]])), make_table([turned]))
    result = metrics.result()["genkt_r04"]
    assert result["median_deg"].value == pytest.approx(0.5 * (1 + math.hypot(1, 0.5)), rel=1e-3)
    assert result["phi_rms90_mrad"].value == pytest.approx(0, abs=1e-3)
    assert result["theta_rms90_mrad"].value == pytest.approx(1e3 * math.radians(0.25), rel=1e-3)
    true, metrics = make_table([[(22, 20.0, 90, 0), (22, 9.9, 90, 90)]]), JetMetrics()  # soft jets do not count
    for angle in (0.11, 0.09):
        metrics.update(true_jets(true), make_table([[(22, 20.0, 90, math.degrees(angle))]]))
    result = metrics.result()["genkt_r04"]
    assert (result["n_true"], result["efficiency"].value) == (2, 0.5)


def test_without_the_package_metrics_have_no_jets(make_table, monkeypatch):
    monkeypatch.setattr(module, "available", lambda: False)
    with pytest.raises(PflowError, match="pip install"):
        find_jets(make_table([DIJET]), radius=0.4)
    assert "jets" not in AlgorithmMetrics().result()


def exact_thrust(momenta) -> float:
    """The largest |sum of a subset| times two over the sum of lengths, of momenta that sum to zero."""
    sums = (
        np.linalg.norm(np.sum(momenta[list(k)], axis=0)) for k in itertools.product((False, True), repeat=len(momenta))
    )
    return 2 * max(sums) / np.linalg.norm(momenta, axis=1).sum()


@pytest.mark.parametrize("seed", [0, 1, 8, 17, 37])  # of the last three, not from the hardest momentum alone
def test_thrust_is_that_of_the_best_of_all_subsets(seed):
    momenta = np.random.default_rng(seed).normal(size=(9, 3)) * [1.0, 1.0, 3.0]
    momenta[-1] = -momenta[:-1].sum(axis=0)
    value, axis = thrust(momenta)
    assert value == pytest.approx(exact_thrust(momenta))
    assert np.abs(momenta @ axis).sum() / np.linalg.norm(momenta, axis=1).sum() == pytest.approx(value)


def two_jets(energy, theta):
    return [(211, energy / 2, theta, 0), (-211, energy / 2, 180 - theta, 180)]


@pytest.fixture
def jets(make_records, make_events, make_reco):
    """40 events of 100 and 20 of 200 GeV, at 90 and 30 degrees, measured with known factors; others are no two jets."""
    star = [(211, 40.0, 90, phi) for phi in (0, 120, 240)]
    rng = np.random.default_rng(0)
    energies = np.array([100.0] * 40 + [200.0] * 20 + [150.0] * 15)
    thetas = np.array([90.0, 30.0] * 30 + [90.0] * 15)
    factors = rng.normal(0.98, 0.04, 104)
    true = [two_jets(e, theta) for e, theta in zip(energies, thetas, strict=True)]
    for event in true[60:]:
        event.append((22, 30.0, 90, 90))  # not at rest
    true += [*12 * [star], *5 * [two_jets(300.0, 90)]]  # three jets, and too few of an energy
    true += [two_jets(energy, 90) for energy in np.linspace(400.0, 430.0, 12)]  # no single energy
    reco = [[(code, e * f, *angles) for code, e, *angles in event] for event, f in zip(true, factors, strict=True)]
    reference = [[(code, 0.999 * e, *angles) for code, e, *angles in event] for event in true]
    events = make_events(true, reference=make_records(reference))
    return factors, pflow.evaluate(make_reco(reco), events, oracle=False)


def expected_resolution(factors) -> tuple[float, float]:
    values = np.sort(factors)
    size = math.ceil(0.9 * len(values))
    runs = [values[k : k + size] for k in range(len(values) - size + 1)]
    best = min(runs, key=np.std)
    return math.sqrt(2) * np.std(best) / np.mean(best), np.mean(best)


def test_jet_energy_resolution_and_scale_by_energy_and_angle(jets):
    factors, result = jets
    found = result.algorithms["PFlow"]["jet_energy"]
    assert {name: tree["n_events"] for name, tree in found.items()} == {"100": 40, "200": 20}
    for name, part, rows in (
        ("100", "", slice(0, 40)),
        ("100", "_barrel", slice(0, 40, 2)),
        ("100", "_endcap", slice(1, 40, 2)),
        ("200", "", slice(40, 60)),
    ):
        expected = expected_resolution(factors[rows])
        numbers = found[name][f"resolution{part}"], found[name][f"scale{part}"]
        assert [number.value for number in numbers] == pytest.approx(expected, rel=1e-4)
        assert all(number.low < number.value < number.high for number in numbers)
    binned = found["100"]["binned"]
    assert [k for k, n in enumerate(binned["n_events"]) if n] == [0, 8]  # |cos 30 deg| = 0.87
    assert binned["resolution"].value[8] == pytest.approx(expected_resolution(factors[1:40:2])[0], rel=1e-4)
    assert result.algorithms["reference"]["jet_energy"]["100"]["resolution"].value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("n_boosted", "n_at_rest"), [(0, 40), (2, 38), (20, 40), (40, 40)])
def test_a_boost_of_many_events_is_of_the_beams(make_table, n_boosted, n_at_rest):
    still = {"sqrt_s": 100.0, "abs_cos_theta": 0.1, "thrust": 1.0, "across": 0.001}
    axes = {name: np.full(40, value) for name, value in still.items()}
    axes["along_x"] = np.where(np.arange(40) < n_boosted, 0.015, -0.002)
    metrics = JetEnergyMetrics()
    metrics.update(axes, make_table([two_jets(98.0, 90)] * 40))
    assert metrics.result()["100"]["n_events"] == n_at_rest


TRUE = [(22, 20.0, 90, 0), (130, 10.0, 90, 90), (211, 30.0, 90, 180), (-211, 25.0, 90, 270)]


def budget_of(make_table, reco, oracle=None, visible=None):
    """Of events with the same true particles and their reconstructed ones."""
    truth, found = make_table([TRUE] * len(reco)), make_table(reco)
    by_oracle = None if oracle is None else energy_by_kind(make_table(oracle))
    budget = ConfusionBudget()
    budget.update(
        truth if visible is None else make_table(visible),
        truth,
        found,
        match_tables(truth, found, Matching()),
        by_oracle,
    )
    return budget.numbers(Bootstrap(len(reco)))


def smeared(rng, n, *, widths, fakes=0.0):
    events = []
    for _ in range(n):
        factors = 1 + rng.normal(size=4) * widths
        event = [(code, e * f, *angles) for (code, e, *angles), f in zip(TRUE, factors, strict=True)]
        events.append([*event, (130, abs(rng.normal(0, fakes)), 20, 45)] if fakes else event)
    return events


def test_each_step_of_the_budget_gains_what_its_kind_spoils(make_table):
    """Photons are smeared by 2 of 85 GeV, neutral hadrons by 3, false ones add half a normal of 4, tracks nothing."""
    rng, n = np.random.default_rng(4), 600
    result = budget_of(make_table, smeared(rng, n, widths=np.array([0.1, 0.3, 0.0, 0.0]), fakes=4.0))
    assert list(result["resolution"]) == ["measured", "photons", "neutral_hadrons", "charged"]
    found = {step: 85 * number.value for step, number in result["gain"].items()}
    false = 4.0 * math.sqrt(1 - 2 / math.pi)
    assert found["photons"] == pytest.approx(0.8 * 2, rel=0.25)  # RMS90 of a normal distribution is 0.79 of its width
    assert found["neutral_hadrons"] == pytest.approx(0.8 * math.hypot(3, false), rel=0.2)
    assert found["charged"] == pytest.approx(0, abs=1e-3)
    assert found["rest"] == pytest.approx(0, abs=1e-3)
    gain = result["gain"]["neutral_hadrons"]
    assert gain.low < gain.value < gain.high


def test_with_the_oracle_confusion_and_measurement_are_apart(make_table):
    """The oracle's photons are smeared by 2 GeV, the algorithm has the same and misses every third neutral hadron."""
    rng, n = np.random.default_rng(5), 400
    oracle = smeared(rng, n, widths=np.array([0.1, 0.0, 0.0, 0.0]))
    reco = [event[:1] + event[2:] if k % 3 == 0 else event for k, event in enumerate(oracle)]
    result = budget_of(make_table, reco, oracle)
    gains = {step: 85 * number.value for step, number in result["gain"].items()}
    assert gains["photons"] == pytest.approx(0, abs=1e-3)
    assert gains["neutral_hadrons"] > 2
    assert gains["measurement_photons"] == pytest.approx(0.8 * 2, rel=0.15)
    assert gains["measurement_neutral_hadrons"] == pytest.approx(0, abs=1e-3)
    assert 85 * result["confusion"].value == pytest.approx(gains["neutral_hadrons"], rel=1e-3)
    assert result["measurement"] == result["resolution"]["charged"]
    of_oracle = budget_of(make_table, oracle, oracle)["gain"]
    assert [of_oracle[kind].value for kind in ("photons", "neutral_hadrons", "charged")] == [0, 0, 0]


def test_a_photon_taken_for_a_hadron_counts_once(make_table):
    swapped = [[(130, *TRUE[0][1:]), *TRUE[1:]] if k % 2 else TRUE for k in range(60)]
    assert budget_of(make_table, swapped)["resolution"]["photons"].value == pytest.approx(0, abs=1e-6)


def test_what_is_no_target_is_left(make_table):
    visible = [[*TRUE, (22, 10.0 * (k % 2), 5, 5)] for k in range(60)]
    result = budget_of(make_table, [TRUE] * 60, visible=visible)
    assert result["gain"]["rest"].value == result["resolution"]["measured"].value > 0.04


def test_the_axis_is_that_of_the_quarks_or_thrust(make_events):
    quarks = [(1, 50.0, 60, 0), (-1, 50.0, 120, 180)]
    recoiling = [*two_jets(100.0, 80), (22, 1.0, 80, 90)]  # from a photon along the beam
    crossing = [*two_jets(100.0, 80), (22, 1.5, 90, 0)]  # beams give 1.5% along x
    of_photon = [*quarks, (22, 1e-3, 90, 0), *two_jets(100.0, 80)]
    parents = [[2, 2, -1, -1, -1], [-1] * 2, [-1], [-1] * 3, [-1] * 3]
    events = make_events([of_photon, two_jets(100.0, 80), [(22, 5.0, 80, 0)], recoiling, crossing], parent=parents)
    true = TrueEvents(events, pflow.select_targets(events))
    axes = true.axes
    cosines = [0.5, math.cos(math.radians(80)), math.nan, math.nan]
    assert axes["abs_cos_theta"][:4] == pytest.approx(cosines, rel=1e-5, nan_ok=True)
    assert axes["sqrt_s"][1:] == pytest.approx([100.0, math.nan, math.nan, 101.5], nan_ok=True)
    assert axes["thrust"][1] == pytest.approx(1)
    still = jet_axes(events, dataclasses.replace(true.visible, momentum=0 * true.visible.momentum))
    assert np.isnan([*still["thrust"], *still["sqrt_s"]]).all()


@pytest.mark.usefixtures("few_resamples")
def test_algorithms_of_one_evaluation_have_the_same_rest(sample_dir):
    evaluation = Evaluation(name="oracle", oracle=True)
    evaluation.update(pflow.read_events(sample_dir / "zqq_test_small.root"), {})
    budgets = [tree["confusion_budget"]["gain"] for tree in evaluation.result().algorithms.values()]
    assert len({budget["rest"].value for budget in budgets}) == 1
    assert budgets[0]["photons"].value == 0
