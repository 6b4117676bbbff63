import dataclasses
import re
import shutil
import warnings
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import uproot

import pflow
from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import BadEntriesWarning, Events, Flag, ImplausibleWarning, Reconstruction
from pflow.event.jagged import Links
from pflow.event.schema import make_links, make_particles
from pflow.event.truth import select_targets
from pflow.inference.files import describe_input
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.flat import write_events
from pflow.io.open import iterate_events
from pflow.io.particles_root import NOTE, RecoWriter, read_provenance
from pflow.io.root import write_note
from pflow.metrics.evaluation import (
    Evaluation,
    check_order,
    truth_settings,
    visible_truth,
)
from pflow.metrics.match import HitMatching, Matching
from pflow.metrics.report import EvaluationSettings, document, method, paired, summary
from pflow.metrics.stats import Number, Series, leaves
from pflow.physics.detector import digest
from pflow.plots.report import report_page

pytestmark = pytest.mark.usefixtures("few_resamples")

TRUTH = [[(22, 10.0, 90, 0), (211, 5.0, 90, 90)], [(22, 20.0, 90, 0)], [], [(130, 4.0, 90, 0)]]
RECO = [[(22, 10.5, 90, 0)], [(22, 20.0, 90, 0)], [], [(130, 3.0, 90, 0)]]


@pytest.fixture
def truth(make_events) -> Events:
    return make_events(TRUTH)


@pytest.fixture
def reco(make_reco) -> Reconstruction:
    return make_reco(RECO)


def evaluate(events: Events, reco: Reconstruction, **options):
    return pflow.evaluate(reco, events, oracle=False, **options)


def same(a, b) -> bool:
    """Whether two trees of results agree to 1e-12."""
    first, second = dict(leaves(a)), dict(leaves(b))
    return list(first) == list(second) and all(
        np.allclose(getattr(content, name), getattr(second[key], name), 1e-12, 1e-15, equal_nan=True)
        for key, content in first.items()
        if isinstance(content, Number | Series)
        for name in ("value", "low", "high")
    )


def test_reference_of_the_file_is_evaluated_with_a_title_of_its_own(truth, reco):
    events = dataclasses.replace(truth, reference=reco.particles, reference_name="Classic")
    result = evaluate(events, reco)
    assert list(result.algorithms) == ["PFlow", "reference"]
    assert result.titles["reference"] == "Classic"
    both = Evaluation()
    for named in (events, dataclasses.replace(events, reference_name="Modern"), events):
        both.update(named, {"PFlow": reco})
    assert both.result().titles["reference"] == "Classic and Modern"
    for _ in range(2):
        both.update(dataclasses.replace(events, reference_name="A and B"), {"PFlow": reco})
    assert both.result().titles["reference"] == "Classic and Modern and A and B"
    assert same(result.algorithms["PFlow"], result.algorithms["reference"])
    result = evaluate(events, dataclasses.replace(reco, name="Classic"))
    assert result.titles == {"Classic": "Classic (Classic)", "reference": "Classic (reference)"}


@pytest.mark.parametrize("name", ["oracle", "reference"])
def test_a_reconstruction_does_not_take_the_name_of_another_algorithm(truth, reco, name):
    """Its numbers were those of the other."""
    reco = dataclasses.replace(reco, name=name)
    with pytest.raises(ConfigError, match=f"the name '{name}' is taken: give the reconstruction another one"):
        pflow.evaluate(reco, truth)
    assert "mine" in pflow.evaluate(reco, truth, name="mine").algorithms


def test_chunks_equal_one_pass(make_reco, make_events):
    rng = np.random.default_rng(0)
    truth = [
        [(rng.choice([22, 211, 130]), rng.uniform(1, 50), 90, rng.uniform(0, 330)) for _ in range(rng.integers(0, 6))]
        for _ in range(12)
    ]
    answers = [[(code, e * rng.normal(1, 0.1), 90 + rng.normal(), phi) for code, e, _, phi in event] for event in truth]
    events, reco = make_events(truth), make_reco(answers)
    evaluation = Evaluation()
    for chunk in (slice(0, 1), slice(1, 7), slice(7, 12)):
        evaluation.update(events[chunk], {"PFlow": reco[chunk]})
    assert evaluation.result().n_events == 12
    assert same(evaluation.result().algorithms["PFlow"], evaluate(events, reco).algorithms["PFlow"])


@pytest.mark.parametrize("flagged", ["truth", "reconstruction"])
def test_flagged_events_are_counted_and_bad_input_is_left_out(truth, reco, flagged):
    flags = np.array([0, Flag.BAD_INPUT, Flag.TRUTH_TRACKS, Flag.TRUTH_TRACKS], dtype=np.uint32)
    given = {"truth": truth, "reconstruction": reco}
    given[flagged] = dataclasses.replace(given[flagged], flags=flags)
    result = evaluate(*given.values())
    assert (result.n_events, result.n_bad_input, result.n_truth_tracks) == (4, 1, 2)
    assert (result.algorithms["PFlow"]["n_events"], result.algorithms["PFlow"]["n_truth"]) == (3, 3)
    assert "2 with tracks made from Monte Carlo particles" in summary(result)


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [({}, (4, 2)), ({"e_min": 6.0}, (2, 2)), ({"matching": Matching(cut=0.1)}, (4, 1)), ({"invisible": (22,)}, (2, 0))],
)
def test_settings_are_used(truth, make_reco, settings, numbers):
    reco = make_reco([[(22, 12.0, 90, 0)], [(22, 20.0, 90, 0)], [], []])
    tree = evaluate(truth, reco, settings=EvaluationSettings(**settings)).algorithms["PFlow"]
    assert (tree["n_truth"], tree["n_matched"]) == numbers


@pytest.mark.parametrize(
    ("particles", "status", "rule", "energies"),
    [
        ([(22, 10.0), (14, 5.0), (11, 3.0)], [1, 1, 0], "stable", [10.0]),  # a neutrino, an intermediate one
        ([(22, 10.0), (22, 0.05)], [1, 1], "stable", [10.0, 0.05]),  # too soft for a target
        ([(22, 10.0), (1000022, 90.0)], [1, 1], "stable", [10.0]),
        ([(22, 10.0), (22, 0.05)], [1, 1], "calo", [10.0]),
    ],
)
def test_visible_truth(make_events, particles, status, rule, energies):
    events = make_events([[(*particle, 90, 0) for particle in particles]], status=[status])
    assert visible_truth(events, select_targets(events, rule=rule)).energy.tolist() == pytest.approx(energies)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([5, 6, 9, 8], r"truth.root, entry 2: is event number 7, in reconstruction 'PFlow' 9: not made"),
        ([5], "4 events here, reconstruction 'PFlow' has 1"),
    ],
)
def test_other_events_are_refused(make_events, make_reco, numbers, message):
    events = make_events(TRUTH, event=np.arange(5, 9))
    with pytest.raises(InputError, match=message):
        evaluate(events, make_reco(RECO[: len(numbers)], event=np.array(numbers)))


def changed(reco, **functions) -> Reconstruction:
    """A reconstruction with columns of its particles replaced by functions of them."""
    particles = reco.particles
    for name, function in functions.items():
        particles = ak.with_field(particles, function(particles[name]), name)
    return dataclasses.replace(reco, particles=particles)


@pytest.mark.parametrize(
    ("energy", "said"), [(np.nan, "finite numbers, found nan"), (-3.0, "energies of at least 0 GeV, found -3")]
)
def test_impossible_numbers_name_algorithm_file_and_entry(truth, reco, energy, said):
    """An energy below 0 would take its energy from that of the fakes."""
    flags = np.array([Flag.BAD_INPUT, 0, 0, 0], np.uint32)
    wrong = changed(reco, energy=lambda _: ak.Array([[energy], [20.0], [], [energy]]))
    wrong = dataclasses.replace(wrong, flags=flags)
    with pytest.raises(InputError, match=f"truth.root, entry 3, 'energy': PFlow: expected {said}"):
        evaluate(truth, wrong)
    with pytest.warns(BadEntriesWarning, match=r"1 of 4 entries cannot be used and were left empty; .*, entry 3"):
        result = evaluate(truth, wrong, on_error="skip")
    assert (result.n_events, result.n_bad_input, result.algorithms["PFlow"]["n_reco"]) == (4, 2, 1)


@pytest.mark.filterwarnings("ignore:.*more momentum than energy, or much less")
def test_a_particle_without_direction_has_no_match(truth, reco):
    at_rest = changed(reco, **dict.fromkeys(("px", "py", "pz"), lambda momentum: 0 * momentum))
    made = evaluate(truth, at_rest).algorithms["PFlow"]
    assert (made["n_reco"], made["n_matched"]) == (3, 0)


def test_events_that_are_there_twice_are_said(events, pandora):
    twice = np.repeat(np.arange(len(events)), 2)
    with pytest.warns(ImplausibleWarning, match=r"gammasep_test_small.root: 25 events have the hits of another one"):
        pflow.evaluate(pandora[twice], events[twice], oracle=False)


@pytest.fixture(scope="module")
def zqq(sample_dir) -> tuple[Reconstruction, Events]:
    events = pflow.read_events(sample_dir / "zqq_test_small.root", entry_stop=6)
    return Reconstruction(particles=events.reference, event=events.event, flags=events.flags), events


def test_events_that_were_simulated_twice_are_said(zqq):
    reco, events = (part[np.repeat(np.arange(6), 2)] for part in zqq)
    second = jagged.event_index(jagged.count(events.hits)) % 2
    hits = jagged.replaced(events.hits, {"energy": jagged.columns(events.hits)["energy"] * (1 + second).astype("f4")})
    with pytest.warns(ImplausibleWarning, match="6 events have the true particles, with other hits, of another one"):
        pflow.evaluate(reco, dataclasses.replace(events, hits=hits), oracle=False)


@pytest.mark.parametrize(
    ("order", "sign", "n_events"),
    [([0, 2, 1, 3, 4, 5], 1, 2), ([5, 0, 1, 2, 3, 4], 1, 6), ([0, 1, 2, 3, 4, 5], -1, 6)],
    ids=["swapped", "rolled", "charges"],
)
def test_particles_of_other_events_are_said(zqq, order, sign, n_events):
    """Event numbers begin at 0 in each file, and the visible energy fits."""
    reco, events = zqq
    pflow.evaluate(reco, events, oracle=False)
    others = changed(reco[order], charge=lambda charge: sign * charge, pdg=lambda pdg: sign * pdg)
    with pytest.warns(ImplausibleWarning, match=f"PFlow: in {n_events} of 6 events most charged particles have no"):
        pflow.evaluate(dataclasses.replace(others, event=reco.event), events, oracle=False)


def test_particles_that_are_there_twice_are_said(zqq):
    reco, events = zqq
    twice = dataclasses.replace(reco, particles=ak.concatenate([reco.particles, reco.particles], axis=1))
    with pytest.warns(ImplausibleWarning, match=r"PFlow: (\d+) of \d+ particles have the momentum of another one: are"):
        pflow.evaluate(twice, events, oracle=False)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("px", lambda px: 1000 * px + 1000, "more momentum than energy, or much less"),
        ("energy", lambda energy: 10 * energy, "more momentum than energy, or much less"),
        ("pdg", lambda pdg: 0 * pdg + 211, "another charge than their PDG code says"),
        ("pdg", lambda pdg: 0 * pdg, "another charge than their PDG code says, or an unknown code"),
    ],
)
def test_momenta_and_codes_that_do_not_fit_are_said(truth, reco, name, change, said):
    with pytest.warns(ImplausibleWarning, match=f"PFlow: 3 of 3 particles have {said}"):
        evaluate(truth, changed(reco, **{name: change}))


def test_the_oracle_and_a_note_know_particles_below_the_smallest_energy(zqq):
    trees, notes = {}, {}
    for e_min in (0.1, 2.0):
        result = pflow.evaluate(*zqq, settings=EvaluationSettings(e_min=e_min))
        trees[e_min], notes[e_min] = result.algorithms["oracle"], method(result)
    assert trees[0.1]["event"]["visible_energy"] == trees[2.0]["event"]["visible_energy"]
    assert ["right particles below 2 GeV" in note for note in notes.values()] == [False, True]


def test_links_of_particles_that_were_sorted_are_said(sample_dir):
    events = pflow.read_events(sample_dir / "zqq_test_small.root", entry_stop=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reco = pflow.reconstruct(events, "general", device="cpu")
        pflow.evaluate(reco, events, oracle=False)
    by_energy = reco.particles[ak.argsort(reco.particles.energy, ascending=False)]
    with pytest.warns(ImplausibleWarning, match=r"a quarter of \d+ neutral .* [12]\.\d+ rad .*: cut or sorted"):
        pflow.evaluate(dataclasses.replace(reco, particles=by_energy), events, oracle=False)


def test_candidates_among_the_particles_are_said_and_scaled_particles_evaluated(sample_dir):
    events = pflow.read_events(sample_dir / "zqq_test_small.root", entry_stop=2)
    reco = pflow.reconstruct(events, "general", device="cpu", candidates=0.1)
    for particles in (reco.particles, 1.1 * reco.particles):
        result = pflow.evaluate(dataclasses.replace(reco, particles=particles), events, oracle=False)
        assert result.algorithms["PFlow"]["n_reco"] == ak.sum(ak.num(particles))
    n = ak.sum(ak.num(reco.candidates))
    both = dataclasses.replace(reco, particles=ak.concatenate([reco.particles, reco.candidates], axis=1))
    with pytest.warns(ImplausibleWarning, match=rf"PFlow: {n} of \d+ particles exist no more probably than candidates"):
        pflow.evaluate(both, events, oracle=False)


def test_tracks_that_were_sorted_are_said(sample_dir):
    events = pflow.read_events(sample_dir / "zqq_test_small.root", entry_stop=2)
    by_pt = events.tracks[ak.argsort(events.tracks.momentum.pt)]
    reco = Reconstruction(particles=events.reference, event=events.event, flags=events.flags)
    pflow.evaluate(reco, events)
    with pytest.warns(ImplausibleWarning, match=r"over 30% of the tracks .*: tracks that are cut or sorted need new"):
        pflow.evaluate(reco, dataclasses.replace(events, tracks=by_pt))


def test_particles_that_are_the_truth_are_said(zqq):
    """Also of one event in six, and matched by anything; hits may be right for particles that are not."""
    reco, events = zqq
    pflow.evaluate(reco, events, oracle=False, settings=EvaluationSettings(matching=Matching(cost="rank", cut=0.5)))
    true = pflow.select_targets(events).particles
    particles = make_particles(**{name: getattr(true, name) for name in ("pdg", "charge", "energy", "px", "py", "pz")})
    few, first = (ak.concatenate([particles[:1, :most], reco.particles[1:]]) for most in (19, None))
    pflow.evaluate(dataclasses.replace(reco, particles=few), events, oracle=False)  # one may be right by chance
    n = len(true[0])
    with pytest.warns(ImplausibleWarning, match=rf"PFlow: {n} of \d+ particles have exactly the energy"):
        result = pflow.evaluate(dataclasses.replace(reco, particles=first), events, oracle=False)
    # The page is shown without the terminal.
    assert document(result)["warnings"] == list(result.warnings)
    page = report_page(result, document(result), {})
    assert re.search(r"Warning:</b> PFlow: \d+ of \d+ particles have exactly", page)


def test_sums_of_energies_scaled_to_a_known_energy_are_said(sample_dir):
    """The event's energy is no measurement then, and would have the best resolution of all."""
    events = pflow.read_events(sample_dir / "multi_test_small.root")[np.arange(40) % 25]
    reco = Reconstruction(particles=events.reference, event=events.event, flags=events.flags)
    true = ak.sum(pflow.select_targets(events).particles.energy, axis=1)
    factor = true / ak.sum(reco.particles.energy, axis=1)
    known = dataclasses.replace(reco, particles=factor * reco.particles)
    said = r"PFlow: the sums of energies have a resolution of 0.\d\d%, with perfect pattern recognition [2-5].\d\d%"
    # Of few events widths are too small to tell.
    for particles, names_it in ((reco, False), (known, True), (known[:29], False)):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            pflow.evaluate(particles, events[: len(particles)])
        assert any(re.match(said, str(warning.message)) for warning in given) == names_it


def test_events_without_particles_are_counted(truth, make_reco):
    result = evaluate(truth, make_reco([RECO[0], [], [], RECO[3]]))
    assert result.algorithms["PFlow"]["n_empty"] == 1  # the third event has no true ones
    assert summary(result).startswith("4 events, PFlow without particles in 1 of them, truth.root")


def test_stated_errors_of_energies_are_evaluated(truth, make_reco):
    """All three of three pairs are in the narrowest interval with 68.3%."""
    reco = make_reco(RECO)
    widths = []
    for factor in (1.0, 4.0):
        variance = factor * (0.02 * ak.flatten(reco.particles.energy).to_numpy()) ** 2
        covariance = np.zeros((3, 10))
        covariance[:, 9] = variance
        particles = ak.with_field(reco.particles, ak.unflatten(covariance, ak.num(reco.particles)), "covariance")
        tree = evaluate(truth, dataclasses.replace(reco, particles=particles)).algorithms["PFlow"]
        widths.append(tree["class"]["all"]["pull_width"].value)
    assert widths == pytest.approx([0.5 * np.log(1.05 / 0.75) / 0.02, 0.25 * np.log(1.05 / 0.75) / 0.02], rel=1e-6)


def test_a_covariance_has_ten_elements(truth, make_reco):
    reco = make_reco([[], [], [], []])
    covariance = ak.from_iter([[], [], [], []])  # of any shape without particles
    evaluate(truth, dataclasses.replace(reco, particles=ak.with_field(reco.particles, covariance, "covariance")))
    reco = make_reco(RECO)
    particles = ak.with_field(reco.particles, ak.unflatten(np.ones((3, 4, 4)), ak.num(reco.particles)), "covariance")
    with pytest.raises(InputError, match=r"PFlow\.covariance.* 10 elements a particle .*shape \(3, 4, 4\)"):
        evaluate(truth, dataclasses.replace(reco, particles=particles))


def test_errors_of_few_events_are_said(truth, reco):
    assert "Errors from fewer than 30 events are too small. All" in method(evaluate(truth, reco))
    many = np.repeat([0, 1], 15)
    assert "too small" not in method(evaluate(truth[many], reco[many]))


def test_energies_of_a_reconstruction_beyond_the_truth_are_said(events, pandora):
    """One of 25 events has 23 times its energy: as 2 TeV from a Z."""
    wrong = changed(pandora, energy=lambda energy: np.where(np.arange(len(events)) == 4, 23.0, 1.0) * energy)
    said = r"^PFlow: particles of 1 of 25 events have up to 196.2 GeV, and their true visible energy is up to 7.353 GeV"
    with pytest.warns(ImplausibleWarning, match=said):
        pflow.evaluate(wrong, events, oracle=False)


def test_a_reference_of_some_events_is_said_to_be_of_these(truth, reco):
    evaluation = Evaluation()
    with_reference = dataclasses.replace(truth, reference=reco.particles, reference_name="Classic")
    evaluation.update(with_reference[:3], {"PFlow": reco[:3]})
    assert summary(evaluation.result()).startswith("3 events, truth.root")
    evaluation.update(truth[3:], {"PFlow": reco[3:]})
    assert summary(evaluation.result()).startswith("4 events, Classic in 3 of them alone (not the same events")


def test_evaluations_that_leave_out_other_events_are_not_paired(truth, reco):
    flags = [np.where(np.arange(4) == bad, Flag.BAD_INPUT, 0).astype(np.uint32) for bad in (0, 3, 3)]
    first, second, third = (
        evaluate(truth, dataclasses.replace(reco, flags=flags_of)).algorithms["PFlow"] for flags_of in flags
    )
    assert paired(second, third)["fake_energy_fraction"].value == 0
    with pytest.raises(ValueError, match="numbers of 3 and of 3 events are not of the same events: evaluate both"):
        paired(first, second)


def test_links_from_tracks_alone_make_no_difference(sample_dir):
    """The momentum of tracks in no particle has another definition without links."""
    events = pflow.read_events(sample_dir / "multi_test_small.root", entry_stop=8)
    reco = pflow.reconstruct(events, "general")
    bare = dataclasses.replace(reco, track_links=None)
    result = evaluate(events, reco, compare={"bare": bare})
    linked, without = (result.algorithms[name]["track_momentum"]["in_none"].value for name in ("PFlow", "bare"))
    change = paired(result.algorithms["PFlow"], result.algorithms["bare"])
    assert linked != without
    assert not any(number.value for number in change.values() if np.isfinite(number.value))
    assert "Tracks in none, of bare, pandora without links from tracks" in method(result)


@pytest.mark.parametrize("settings", [{"rule": "best"}, {"e_min": -1.0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError, match=r"no truth rule 'best'|e_min must be at least 0"):
        Evaluation(settings=EvaluationSettings(**settings))
    with pytest.raises(TypeError, match=r"expected matching, a pflow\.Matching\(\.\.\.\) or .*; found str"):
        EvaluationSettings(matching="hits")


def test_pandora_on_the_geant4_samples(data_dir):
    for sample, expected in {  # from PHYSICS.md, section 5, by independent code
        "gamma1": {"count.exact_fraction": (0.934, 0.0005), "angle.mean_deg": (0.036, 0.0005)},
        "gammasep": {"count.one_vs_two_accuracy": (0.890, 0.0005)},
    }.items():
        evaluation = Evaluation(name="reference")
        for events in iterate_events(data_dir / "g4" / f"{sample}_test.root", chunk_size=500):
            evaluation.update(events, {})
        numbers = dict(leaves(evaluation.result().algorithms["reference"]))
        for key, (value, tolerance) in expected.items():
            assert numbers[key].value == pytest.approx(value, abs=tolerance), key


BY_HITS = EvaluationSettings(matching=HitMatching())


def linked(reco) -> Reconstruction:
    """The first particle of each event has the first hit, in the last event 20% of it."""
    first = ak.Array([[0], [0], [], [0]])
    links = make_links(source=first, particle=first, weight=[[1.0], [1.0], [], [0.2]], normalise=False)
    return dataclasses.replace(reco, hit_links=links)


def test_matching_by_hits_ignores_energy_and_angle(truth, make_reco):
    # The first photon is far away but has the true hit; the last particle has the true momentum but 20% of the hit.
    far = make_reco([[(22, 90.0, 20, 170)], [(22, 20.0, 90, 0)], [], [(130, 4.0, 90, 0)]])
    tree = evaluate(truth, linked(far), settings=BY_HITS).algorithms["PFlow"]
    assert (tree["n_truth"], tree["n_reco"], tree["n_matched"]) == (4, 3, 2)
    assert tree["class"]["photon"]["efficiency"].value == 1.0
    assert tree["class"]["neutral_hadron"]["fake_rate"].value == 1.0
    evaluation = Evaluation(name="oracle", oracle=True, settings=BY_HITS)
    evaluation.update(truth, {})
    assert evaluation.result().algorithms["oracle"]["class"]["all"]["efficiency"].value == 1.0


def test_matching_by_hits_needs_links_of_all_and_leaves_out_the_reference(truth, reco):
    evaluation = Evaluation(settings=BY_HITS, oracle=True)
    events = dataclasses.replace(truth, reference=reco.particles, reference_name="Classic")
    evaluation.update(events, {"PFlow": linked(reco), "Linked": linked(reco)})
    result = evaluation.result()
    assert list(result.algorithms) == ["PFlow", "Linked", "oracle"]
    assert same(result.algorithms["Linked"], result.algorithms["PFlow"])
    assert "References in files assign no hits, and are left out." in method(result)
    with pytest.raises(InputError, match="reconstruction 'Bare' has no links from hits to its particles: match by"):
        evaluation.update(events, {"PFlow": linked(reco), "Bare": reco})


@pytest.fixture(scope="module")
def sample(sample_dir):
    return sample_dir / "gammasep_test_small.root"


@pytest.fixture(scope="module")
def events(sample) -> Events:
    return pflow.read_events(sample)


@pytest.fixture(scope="module")
def pandora(events) -> Reconstruction:
    return Reconstruction(particles=events.reference, event=events.event, flags=events.flags)


@pytest.fixture
def write(tmp_path):
    """Writes reconstructions to a file, with a provenance of these inputs or of other keys."""

    def write(*recos, inputs=(), **provenance) -> Path:
        provenance |= {"inputs": [described(path) for path in inputs]} if inputs else {}
        with RecoWriter(tmp_path / "reco.root", provenance=provenance) as writer:
            for reco in recos:
                writer.extend(reco)
        return tmp_path / "reco.root"

    return write


def described(path) -> dict:
    with pflow.open_events(path) as file:
        return describe_input(file)


def test_files_and_memory_give_the_same_numbers(sample, events, pandora, write):
    calls = []
    in_memory = document(pflow.evaluate(pandora, events))
    of_files = document(pflow.evaluate(write(pandora), [sample], progress=lambda *counts: calls.append(counts)))
    for key in ("count", "energy_weighted_efficiency", "oracle", "reference"):
        assert of_files[key] == in_memory[key]
    assert calls[-1] == (25, 1, 1)


def test_the_file_with_an_energy_below_0_is_named(sample, pandora, write):
    reco = write(changed(pandora, energy=lambda energy: -energy))
    with pytest.raises(InputError, match=r"small.root, entry 0, 'energy': PFlow of .*reco.root: expected energies"):
        pflow.evaluate(reco, sample)


def test_mixed_and_swapped_arguments_are_refused(sample, events, pandora, write):
    made = write(pandora, inputs=[sample])
    for error, message, reco, truth, options in (
        (TypeError, "or both in memory: pflow.read_reco", "reco.root", events, {}),
        (TypeError, r"pflow\.Reconstruction\(.*\) is of an array", pandora.particles, events, {}),
        (TypeError, "files of reconstructions", pandora, sample, {}),
        (TypeError, r"evaluate\(reco, events\)", events, pandora, {}),
        (TypeError, "rule: for files of events; the truth rule .* in `settings`", pandora, events, {"rule": "calo"}),
        (ConfigError, "unknown field 'rule'; expected some of detector", "reco.root", sample, {"rule": "calo"}),
        (ConfigError, "no on_error 'ignore': expected one of raise, skip", pandora, events, {"on_error": "ignore"}),
        (ConfigError, "no files are given: the list is empty", [], [], {}),
        (InputError, "no events to evaluate", pandora[:0], events[:0], {}),
        (InputError, r"gammasep_test_small\.root: .*reco\.root was made from this file", sample, made, {}),
    ):
        with pytest.raises(error, match=message):
            pflow.evaluate(reco, truth, **options)


def test_repr_and_html_of_a_result(events, pandora):
    result = pflow.evaluate(pandora, events, oracle=False)
    assert repr(result).startswith("<EvaluationResult: 25 events, efficiency: PFlow 0.9")
    assert len(repr(result)) < 120
    table = result._repr_html_()
    assert table.startswith("<table><caption>25 events, gammasep_test_small.root, ild_g4, 5.44 to 74.2 GeV</caption>")
    assert "<td>fake rate</td>" in table


def write_output(path, input_path, events, **reading) -> None:
    """Write the reference's particles as an output of pflow with the collections of its input."""
    with pflow.open_events(input_path, detector="cld", **reading) as file:
        made = {"inputs": [describe_input(file)]}
        with Edm4hepRecoWriter(path, file, provenance=made) as writer:
            writer.extend(Reconstruction(particles=events.reference, event=events.event, flags=events.flags))


def test_an_output_with_the_collections_of_its_input_has_its_truth(cld_rntuple_path, cld_rec, tmp_path):
    output = tmp_path / "output.root"
    write_output(output, cld_rntuple_path, cld_rec)
    check_order([str(output)], [str(cld_rntuple_path)])
    result = pflow.evaluate(output, output, oracle=False, detector="cld")
    assert result.algorithms["PFlow"]["n_truth"] == len(select_targets(cld_rec).chosen)


def test_truth_tracks_of_a_reconstruction_hold_for_its_evaluation(cld_rec, cld_sim_path, tmp_path):
    reco = tmp_path / "reco.root"
    write_output(reco, cld_sim_path, cld_rec[:3], truth_tracks=True)
    assert pflow.evaluate(reco, cld_sim_path, oracle=False, detector="cld").n_truth_tracks == 3


def test_only_the_event_with_invalid_truth_is_skipped(events, pandora, spoil):
    looped = spoil(events, 0, "truth.parent", 0)
    with pytest.raises(InputError, match="own ancestor"):
        pflow.evaluate(pandora, looped)
    with pytest.warns(BadEntriesWarning, match="1 of 25 entries cannot be used"):
        result = pflow.evaluate(pandora, looped, on_error="skip")
    assert (result.n_events, result.n_bad_input) == (25, 1)
    expected = document(pflow.evaluate(pandora[1:], events[1:]))
    numbers, wanted = (
        dict(leaves({key: tree[key] for key in ("energy", "oracle")})) for tree in (document(result), expected)
    )
    # The other events keep their places, and so their weights in the resamples.
    values = [key for key in wanted if not key.endswith(("_interval", "places"))]
    assert {key: numbers[key] for key in values} == {key: wanted[key] for key in values}


@pytest.mark.filterwarnings("ignore:.*entry 0. the reference's energy is not 0.5 to 2 times")
def test_an_invalid_particle_of_the_reference_is_left_out(events, pandora, spoil, tmp_path):
    write_events(tmp_path / "bad.root", spoil(events, 0, "reference.energy", np.nan))
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.warns(ImplausibleWarning, match=r"entry 0: .* have 0\.00 t"),
    ):
        content = document(pflow.evaluate(pandora, pflow.read_events(tmp_path / "bad.root"), oracle=False))
    expected = document(pflow.evaluate(pandora, events, oracle=False))
    assert (content["n_bad_input"], content["energy"]) == (0, expected["energy"])
    assert content["reference"]["n_reco"] == expected["reference"]["n_reco"] - 1
    with pytest.raises(InputError, match=r"entry 0, 'energy': reference: expected"):
        pflow.evaluate(pandora, spoil(events, 0, "reference.energy", -0.5), oracle=False)


def test_outputs_merged_by_hadd_are_checked_by_all_their_inputs(sample, pandora, write):
    """hadd keeps each provenance as a cycle of one key; entries beyond their sum are of files that it forgot."""
    second_sample = sample.with_name("gamma1_test_small.root")
    events = pflow.read_events(second_sample)
    second = Reconstruction(particles=events.reference, event=events.event, flags=events.flags)
    note = {"options": {}, "flagged": {"MAX_PARTICLES": 1}}
    merged = write(pandora, second, inputs=[sample], **note)
    assert check_order([str(merged)], [str(second_sample)]) is None
    with uproot.update(merged) as file:
        write_note(file, NOTE, note | {"inputs": [described(second_sample)]})
    provenance = read_provenance(merged)
    assert [entry["path"] for entry in provenance["inputs"]] == [str(sample), str(second_sample)]
    assert provenance["flagged"] == {"MAX_PARTICLES": 2}
    check_order([str(merged)], [str(sample), str(second_sample)])
    with pytest.raises(InputError, match=r"was made from .*gammasep_test_small\.root"):
        check_order([str(merged)], [str(second_sample), str(sample)])


def test_an_input_that_was_written_again_is_said(pandora, sample, write, tmp_path):
    events = shutil.copy(sample, tmp_path / "events.root")
    reco = write(pandora, inputs=[events])
    check_order([str(reco)], [str(events)])
    shutil.copy(sample.with_name("gamma1_test_small.root"), events)
    with pytest.raises(InputError, match=r"made from an earlier .*events\.root, written again since"):
        check_order([str(reco)], [str(events)])


def test_merged_outputs_of_different_options_give_a_warning(pandora, write):
    merged = write(pandora, options={"max_hits": 1})
    with uproot.update(merged) as file:
        write_note(file, NOTE, {"options": {"max_hits": 2}})
    with pytest.warns(ImplausibleWarning, match=r"reco\.root: joins outputs that were made with different max_hits$"):
        read_provenance(merged)


def test_files_of_different_models_under_one_name_are_said(sample, pandora, write, tmp_path):
    def evaluate(sha256, path, device, **more):
        options = {"device": device, "format": "edm4hep", **more}
        origin = {"checkpoint": {"path": path, "sha256": sha256}, "options": options}
        reco = write(pandora, **origin).rename(tmp_path / f"{device}.root")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the same events twice
            warnings.filterwarnings("error", "PFlow: its files were made with different")
            pflow.evaluate([first, reco], [sample, sample], oracle=False)

    first = write(pandora, checkpoint={"path": "a.ckpt", "sha256": "a" * 64}, options={"format": "flat"})
    first = first.rename(tmp_path / "first.root")
    evaluate("a" * 64, "elsewhere/a.ckpt", "cuda")
    with pytest.raises(ImplausibleWarning, match=r"PFlow: its files were made with different checkpoint$"):
        evaluate("b" * 64, "a.ckpt", "cpu")
    with pytest.raises(ImplausibleWarning, match=r"PFlow: its files were made with different max_hits$"):
        evaluate("a" * 64, "a.ckpt", "mps", max_hits=2)


def test_links_from_missing_tracks_or_without_targets_are_refused(events, pandora):
    with pytest.raises(InputError, match=r"under truth rule 'stable' above 1000 GeV: .* whether the links of hits"):
        pflow.evaluate(pandora, events, settings=EvaluationSettings(e_min=1000.0))
    skipped = dataclasses.replace(pandora, flags=np.full(len(events), Flag.BAD_INPUT, dtype=np.uint32))
    with pytest.raises(InputError, match="none of the events can be evaluated: all were left out"):
        pflow.evaluate(skipped, events, oracle=False)
    links = Links.by_event(*(np.array([number]) for number in (3, 7, 0, 1)), len(events)).records()
    with pytest.raises(InputError, match=r"entry 3, 'track_links\.source': PFlow: points .* another file, or cut"):
        pflow.evaluate(dataclasses.replace(pandora, track_links=links), events, oracle=False)


def test_another_description_is_named_also_of_a_later_file(sample, events, pandora, write, tmp_path, monkeypatch):
    """It was made in Python, and has a name alone."""
    truth = [sample, sample.with_name("gamma1_test_small.root")]
    others = pflow.read_events(truth[1])
    second = Reconstruction(particles=others.reference, event=others.event, flags=others.flags)
    recos = [write(reco).rename(tmp_path / f"{n}.root") for n, reco in enumerate((pandora, second))]
    made = {"configuration": {"tokeniser": {"config": {"geometry": True}}}}
    made["options"] = {"detector": "mine", "read_as": {"name": "mine", "b_field": 4.0}}
    described = {str(recos[0]): digest(events.detector), str(recos[1]): "of before"}
    monkeypatch.setattr("pflow.metrics.evaluation.provenance_of", lambda _: made)
    monkeypatch.setattr("pflow.metrics.evaluation._inputs", lambda path: [{"description": described.get(str(path))}])
    said = r"1\.root: the particles of PFlow were made with another .* \(detector 'mine' as it was described then\)"
    with pytest.warns(ImplausibleWarning, match=said):
        pflow.evaluate(recos, truth, oracle=False)


@pytest.fixture
def calo_output(pandora, write):
    """An output of a model that was trained with rule calo."""
    config = {"rule": "calo", "e_min": 0.3, "stable_status": [1], "invisible": [], "order": "energy"}
    return write(pandora, configuration={"tokeniser": {"config": config}})


def test_default_settings_are_the_models(sample, calo_output):
    settings = pflow.evaluate(calo_output, sample, oracle=False).settings
    assert (settings.rule, settings.e_min) == ("calo", 0.3)
    assert truth_settings({"PFlow": [calo_output]}, e_min=1.0) == EvaluationSettings(rule="calo", e_min=1.0)
    with pytest.warns(ImplausibleWarning, match="'stable', its model was trained with 'calo'"):
        settings = truth_settings({"PFlow": [calo_output]}, rule="stable")
    assert settings == EvaluationSettings(e_min=0.3)


def test_events_are_compared_with_those_of_the_models_training(sample, pandora, write):
    scales = {"max_energy": 1.0, "opening": 0.04, "b_field": None}
    reco = write(pandora, configuration={"tokeniser": {"sample": scales}})
    with pytest.warns(ImplausibleWarning, match=r"have up to .* GeV in hits, and in the training sample of the model"):
        pflow.evaluate(reco, sample, oracle=False)


def test_default_settings_in_memory_are_the_models(events, pandora, calo_output):
    model = pflow.reconstruct(events[:1], "ild-g4-photon")
    assert model.trained_with == {"rule": "stable", "e_min": 0.1, "stable_status": (1,), "invisible": ()}
    trained = pflow.read_reco(calo_output)
    settings = pflow.evaluate(trained, events, oracle=False).settings
    assert (settings.rule, settings.e_min) == ("calo", 0.3)
    assert pandora.trained_with is None
    with pytest.warns(ImplausibleWarning, match="Model is evaluated under rule 'stable', its model was trained with"):
        assert pflow.evaluate(pandora, events, compare={"Model": trained}, oracle=False).settings.rule == "stable"
