import dataclasses

import numpy as np
import pytest
import uproot

import pflow
from pflow.errors import InputError
from pflow.event.events import BadEntriesWarning, Events, ImplausibleWarning
from pflow.event.jagged import Links
from pflow.event.particles import Reconstruction
from pflow.event.truth import select_targets
from pflow.inference.worker import describe_input
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.flat import write_events
from pflow.io.particles_root import NOTE, RecoWriter, read_provenance
from pflow.io.root import write_note
from pflow.metrics.evaluate import check_order, truth_settings
from pflow.metrics.evaluation import EvaluationSettings
from pflow.metrics.report import document


@pytest.fixture(scope="module")
def sample(sample_dir):
    return sample_dir / "gammasep_test_small.root"


@pytest.fixture(scope="module")
def events(sample) -> Events:
    return pflow.read_events(sample)


@pytest.fixture(scope="module")
def pandora(events) -> Reconstruction:
    return Reconstruction(particles=events.reference, event=events.event, flags=events.flags)


def test_files_and_memory_give_the_same_numbers(sample, events, pandora, tmp_path):
    reco, calls = tmp_path / "reco.root", []
    with RecoWriter(reco, provenance={}) as writer:
        writer.extend(pandora)
    in_memory = document(pflow.evaluate(pandora, events))
    of_files = document(pflow.evaluate(str(reco), [sample], progress=lambda *counts: calls.append(counts)))
    for key in ("count", "energy_weighted_efficiency", "oracle", "reference"):
        assert of_files[key] == in_memory[key]
    assert calls[-1] == (25, 1, 1)


def test_mixed_and_swapped_arguments_are_refused(sample, events, pandora, tmp_path):
    for reco, truth, message in (
        ("reco.root", events, "reconstructions in memory"),
        (pandora, sample, "files of reconstructions"),
        (events, pandora, r"evaluate\(reco, events\)"),
    ):
        with pytest.raises(TypeError, match=message):
            pflow.evaluate(reco, truth)
    with pflow.open_events(sample) as file:
        made = {"inputs": [describe_input(file)]}
    with RecoWriter(tmp_path / "reco.root", provenance=made) as writer:
        writer.extend(pandora)
    with pytest.raises(InputError, match=r"gammasep_test_small\.root: .*reco\.root was made from this file"):
        pflow.evaluate(sample, tmp_path / "reco.root")


def test_repr_and_html_of_a_result(events, pandora):
    result = pflow.evaluate(pandora, events, oracle=False)
    assert repr(result).startswith("<EvaluationResult: 25 events, efficiency: PFlow 0.9")
    assert len(repr(result)) < 120
    table = result._repr_html_()
    assert table.startswith("<table><caption>25 events</caption>")
    assert "<td>fake rate</td>" in table


def write_output(path, input_path, events, **reading) -> None:
    """Write the reference's particles as an output of pflow with the collections of its input."""
    with pflow.open_events(input_path, **reading) as file:
        made = {"inputs": [describe_input(file)]}
        with Edm4hepRecoWriter(path, file, provenance=made) as writer:
            writer.extend(Reconstruction(particles=events.reference, event=events.event, flags=events.flags))


def test_an_output_with_the_collections_of_its_input_has_its_truth(cld_rntuple_path, tmp_path):
    events = pflow.read_events(cld_rntuple_path)
    output = tmp_path / "output.root"
    write_output(output, cld_rntuple_path, events)
    check_order([str(output)], [str(cld_rntuple_path)])
    result = pflow.evaluate(output, output, oracle=False)
    assert result.algorithms["PFlow"]["n_truth"] == len(select_targets(events).chosen)


def test_a_reconstruction_with_truth_tracks_is_evaluated_with_truth_tracks(cld_path, cld_sim_path, tmp_path):
    events = pflow.read_events(cld_path, entry_stop=3)
    write_output(tmp_path / "reco.root", cld_sim_path, events, truth_tracks=True)
    assert pflow.evaluate(tmp_path / "reco.root", cld_sim_path, oracle=False).n_truth_tracks == 3


def test_only_the_event_with_invalid_truth_is_skipped(events, pandora, spoil):
    looped = spoil(events, 0, "truth.parent", 0)
    with pytest.raises(InputError, match="own ancestor"):
        pflow.evaluate(pandora, looped)
    with pytest.warns(BadEntriesWarning, match="1 of 25 entries cannot be used"):
        result = pflow.evaluate(pandora, looped, on_error="skip")
    assert (result.n_events, result.n_bad_input) == (25, 1)
    expected = document(pflow.evaluate(pandora[1:], events[1:]))
    for key in ("energy", "oracle"):
        assert document(result)[key] == expected[key]


def test_an_invalid_particle_of_the_reference_is_left_out(events, pandora, spoil, tmp_path):
    write_events(tmp_path / "bad.root", spoil(events, 0, "reference.energy", np.nan))
    with pytest.warns(UserWarning, match="left out"):
        content = document(pflow.evaluate(pandora, pflow.read_events(tmp_path / "bad.root"), oracle=False))
    expected = document(pflow.evaluate(pandora, events, oracle=False))
    assert (content["n_bad_input"], content["energy"]) == (0, expected["energy"])
    assert content["reference"]["n_reco"] == expected["reference"]["n_reco"] - 1


def test_outputs_merged_by_hadd_are_checked_by_all_their_inputs(sample, pandora, tmp_path):
    """hadd keeps each provenance as a cycle of one key; entries beyond their sum are of files that it forgot."""
    second_sample = sample.with_name("gamma1_test_small.root")
    events = pflow.read_events(second_sample)
    second = Reconstruction(particles=events.reference, event=events.event, flags=events.flags)
    notes = []
    for path in (sample, second_sample):
        with pflow.open_events(path) as file:
            notes.append({"inputs": [describe_input(file)], "options": {}, "flagged": {"MAX_PARTICLES": 1}})
    merged = tmp_path / "merged.root"
    with RecoWriter(merged, provenance=notes[0]) as writer:
        writer.extend(pandora)
        writer.extend(second)
    assert check_order([str(merged)], [str(second_sample)]) is None
    with uproot.update(merged) as file:
        write_note(file, NOTE, notes[1])
    provenance = read_provenance(merged)
    assert [entry["path"] for entry in provenance["inputs"]] == [str(sample), str(second_sample)]
    assert provenance["flagged"] == {"MAX_PARTICLES": 2}
    check_order([str(merged)], [str(sample), str(second_sample)])
    with pytest.raises(InputError, match=r"was made from .*gammasep_test_small\.root"):
        check_order([str(merged)], [str(second_sample), str(sample)])


def test_merged_outputs_of_different_options_give_a_warning(pandora, tmp_path):
    merged = tmp_path / "merged.root"
    with RecoWriter(merged, provenance={"options": {"max_hits": 1}}) as writer:
        writer.extend(pandora)
    with uproot.update(merged) as file:
        write_note(file, NOTE, {"options": {"max_hits": 2}})
    with pytest.warns(ImplausibleWarning, match=r"merged\.root: joins outputs that were made with different options"):
        read_provenance(merged)


def test_particles_of_other_events_with_the_same_numbers_give_a_warning(events, pandora):
    rolled = dataclasses.replace(pandora[np.roll(np.arange(25), 7)], event=events.event)
    with pytest.warns(ImplausibleWarning, match=r"in 2\d of 25 events less than 30% of the true energy is matched"):
        pflow.evaluate(rolled, events, oracle=False)


def test_links_from_missing_tracks_and_truth_without_a_target_are_refused(events, pandora):
    with pytest.raises(InputError, match="no true particle is a target under truth rule 'stable' above 1000 GeV"):
        pflow.evaluate(pandora, events, settings=EvaluationSettings(e_min=1000.0))
    links = Links.by_event(*(np.array([number]) for number in (3, 7, 0, 1)), len(events)).records()
    with pytest.raises(InputError, match=r"entry 3, 'track_links\.source': PFlow: points outside .* another file\?"):
        pflow.evaluate(dataclasses.replace(pandora, track_links=links), events, oracle=False)


@pytest.fixture
def calo_output(pandora, tmp_path):
    """An output of a model that was trained with rule calo."""
    config = {"rule": "calo", "e_min": 0.3, "stable_status": [1], "invisible": [], "order": "energy"}
    path = tmp_path / "reco.root"
    with RecoWriter(path, provenance={"configuration": {"tokeniser": {"config": config}}}) as writer:
        writer.extend(pandora)
    return path


def test_default_settings_are_the_models_and_another_rule_gives_a_warning(sample, calo_output):
    settings = pflow.evaluate(calo_output, sample, oracle=False).settings
    assert (settings.rule, settings.e_min) == ("calo", 0.3)
    assert truth_settings({"PFlow": [calo_output]}, e_min=1.0) == EvaluationSettings(rule="calo", e_min=1.0)
    with pytest.warns(ImplausibleWarning, match="'stable', its model was trained with 'calo'"):
        settings = truth_settings({"PFlow": [calo_output]}, rule="stable")
    assert settings == EvaluationSettings(e_min=0.3)


def test_default_settings_in_memory_are_the_models(events, pandora, calo_output):
    model = pflow.reconstruct(events[:1], "ild-g4-photon")
    assert model.trained_with == {"rule": "stable", "e_min": 0.1, "stable_status": (1,), "invisible": ()}
    trained = pflow.read_reco(calo_output)
    settings = pflow.evaluate(trained, events, oracle=False).settings
    assert (settings.rule, settings.e_min) == ("calo", 0.3)
    assert pandora.trained_with is None
    with pytest.warns(ImplausibleWarning, match="Model is evaluated under rule 'stable', its model was trained with"):
        assert pflow.evaluate(pandora, events, compare={"Model": trained}, oracle=False).settings.rule == "stable"
