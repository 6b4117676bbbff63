"""Evaluation of files and of what is in memory, and how chunks of different lengths come together."""

import dataclasses

import numpy as np
import pytest
import uproot

import pflow
from pflow.errors import InputError
from pflow.event.links import Links
from pflow.event.particles import Reconstruction
from pflow.event.skipped import BadEntriesWarning, ImplausibleWarning
from pflow.event.truth import select_targets
from pflow.inference.provenance import describe_input
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.events_root import write_events
from pflow.io.output import NOTE
from pflow.io.particles_root import RecoWriter, read_provenance
from pflow.io.root import write_note
from pflow.metrics.evaluate import check_order, truth_settings
from pflow.metrics.evaluation import EvaluationSettings
from pflow.metrics.report import document


@pytest.fixture(scope="module")
def sample(sample_dir):
    return sample_dir / "gammasep_test_small.root"


@pytest.fixture(scope="module")
def pandora(sample) -> Reconstruction:
    """The reference of the sample as a reconstruction."""
    events = pflow.read_events(sample)
    return Reconstruction(particles=events.reference, event=events.event, flags=events.flags)


def test_files_have_the_numbers_of_what_is_in_memory(sample, pandora, tmp_path):
    reco, seen = tmp_path / "reco.root", []
    with RecoWriter(reco, provenance={}) as writer:
        writer.extend(pandora)
    here = document(pflow.evaluate(pandora, pflow.read_events(sample)))
    read = pflow.evaluate(str(reco), [sample], progress=lambda *counts: seen.append(counts))
    for key in ("count", "energy_weighted_efficiency", "oracle", "reference"):
        assert document(read)[key] == here[key]
    assert seen[-1] == (25, 1, 1)


def test_further_reconstructions_are_evaluated_beside_it(sample, pandora):
    result = pflow.evaluate(pandora, pflow.read_events(sample), compare={"Again": pandora}, oracle=False)
    assert list(result.algorithms) == ["PFlow", "Again", "reference"]


def test_files_and_memory_are_not_mixed(sample, pandora):
    with pytest.raises(TypeError, match="reconstructions in memory"):
        pflow.evaluate("reco.root", pflow.read_events(sample))
    with pytest.raises(TypeError, match="files of reconstructions"):
        pflow.evaluate(pandora, sample)


def test_swapped_arguments_are_recognised(sample, pandora, tmp_path):
    with pytest.raises(TypeError, match=r"evaluate\(reco, events\)"):
        pflow.evaluate(pflow.read_events(sample), pandora)
    with pflow.open_events(sample) as file:
        made = {"inputs": [describe_input(file)]}
    with RecoWriter(tmp_path / "reco.root", provenance=made) as writer:
        writer.extend(pandora)
    with pytest.raises(InputError, match=r"gammasep_test_small\.root: .*reco\.root was made from this file"):
        pflow.evaluate(sample, tmp_path / "reco.root")


def test_a_result_is_shown_in_a_line_and_as_a_table(sample, pandora):
    result = pflow.evaluate(pandora, pflow.read_events(sample), oracle=False)
    assert repr(result).startswith("<EvaluationResult: 25 events, efficiency: PFlow 0.9")
    assert len(repr(result)) < 120
    table = result._repr_html_()
    assert table.startswith("<table><caption>25 events</caption>")
    assert "<td>fake rate</td>" in table


def as_output(path, input_path, events, **reading) -> None:
    """An output of pflow with the collections of its input; the particles are the reference's."""
    with pflow.open_events(input_path, **reading) as file:
        made = {"inputs": [describe_input(file)]}
        with Edm4hepRecoWriter(path, file, provenance=made) as writer:
            writer.extend(Reconstruction(particles=events.reference, event=events.event, flags=events.flags))


def test_an_output_with_the_collections_of_its_input_is_truth_too(cld_rntuple_path, tmp_path):
    events = pflow.read_events(cld_rntuple_path)
    keep = tmp_path / "keep.root"
    as_output(keep, cld_rntuple_path, events)
    check_order([str(keep)], [str(cld_rntuple_path)])
    found = pflow.evaluate(keep, keep, oracle=False)
    assert found.algorithms["PFlow"]["n_truth"] == len(select_targets(events).chosen)


def test_what_was_made_with_truth_tracks_is_evaluated_with_them(cld_path, cld_sim_path, tmp_path):
    events = pflow.read_events(cld_path, entry_stop=3)
    as_output(tmp_path / "reco.root", cld_sim_path, events, truth_tracks=True)
    assert pflow.evaluate(tmp_path / "reco.root", cld_sim_path, oracle=False).n_truth_tracks == 3


def test_an_event_whose_truth_makes_no_sense_is_skipped_alone(sample, pandora, spoil):
    events = pflow.read_events(sample)
    looped = spoil(events, 0, "truth.parent", 0)
    with pytest.raises(InputError, match="own ancestor"):
        pflow.evaluate(pandora, looped)
    with pytest.warns(BadEntriesWarning, match="1 of 25 entries cannot be used"):
        found = pflow.evaluate(pandora, looped, on_error="skip")
    assert (found.n_events, found.n_bad_input) == (25, 1)
    wanted = document(pflow.evaluate(pandora[1:], events[1:]))
    assert document(found)["energy"] == wanted["energy"]
    assert document(found)["oracle"] == wanted["oracle"]


def test_a_bad_particle_of_the_reference_costs_the_reference_alone(sample, pandora, spoil, tmp_path):
    events = pflow.read_events(sample)
    write_events(tmp_path / "bad.root", spoil(events, 0, "reference.energy", np.nan))
    with pytest.warns(UserWarning, match="left out"):
        found = document(pflow.evaluate(pandora, pflow.read_events(tmp_path / "bad.root"), oracle=False))
    wanted = document(pflow.evaluate(pandora, events, oracle=False))
    assert (found["n_bad_input"], found["energy"]) == (0, wanted["energy"])
    assert found["reference"]["n_reco"] == wanted["reference"]["n_reco"] - 1


def test_outputs_that_hadd_merged_are_checked_by_all_their_inputs(sample, pandora, tmp_path):
    """hadd keeps the provenance of each as a cycle of one key; more entries than these are of files that it forgot."""
    other = sample.with_name("gamma1_test_small.root")
    events = pflow.read_events(other)
    second = Reconstruction(particles=events.reference, event=events.event, flags=events.flags)
    notes = []
    for path in (sample, other):
        with pflow.open_events(path) as file:
            notes.append({"inputs": [describe_input(file)], "options": {}, "flagged": {"MAX_PARTICLES": 1}})
    merged = tmp_path / "merged.root"
    with RecoWriter(merged, provenance=notes[0]) as writer:
        writer.extend(pandora)
        writer.extend(second)
    assert check_order([str(merged)], [str(other)]) is None
    with uproot.update(merged) as file:
        write_note(file, NOTE, notes[1])
    made = read_provenance(merged)
    assert [entry["path"] for entry in made["inputs"]] == [str(sample), str(other)]
    assert made["flagged"] == {"MAX_PARTICLES": 2}
    check_order([str(merged)], [str(sample), str(other)])
    with pytest.raises(InputError, match=r"was made from .*gammasep_test_small\.root"):
        check_order([str(merged)], [str(other), str(sample)])


def test_outputs_of_other_options_that_were_merged_are_told(sample, pandora, tmp_path):
    merged = tmp_path / "merged.root"
    with RecoWriter(merged, provenance={"options": {"max_hits": 1}}) as writer:
        writer.extend(pandora)
    with uproot.update(merged) as file:
        write_note(file, NOTE, {"options": {"max_hits": 2}})
    with pytest.warns(ImplausibleWarning, match=r"merged\.root: joins outputs that were made with different options"):
        read_provenance(merged)


def test_particles_of_other_events_with_the_same_numbers_are_told(sample, pandora):
    events = pflow.read_events(sample)
    turned = dataclasses.replace(pandora[np.roll(np.arange(25), 7)], event=events.event)
    with pytest.warns(ImplausibleWarning, match=r"in 2\d of 25 events less than 30% of the true energy is matched"):
        pflow.evaluate(turned, events, oracle=False)


def test_links_to_tracks_that_are_not_there_are_refused(sample, pandora):
    events = pflow.read_events(sample)
    links = Links.by_event(*(np.array([number]) for number in (3, 7, 0, 1)), len(events)).records()
    with pytest.raises(InputError, match=r"entry 3, 'track_links\.source': PFlow: points outside .* another file\?"):
        pflow.evaluate(dataclasses.replace(pandora, track_links=links), events, oracle=False)


@pytest.fixture
def of_model(pandora, tmp_path):
    """An output of a model that was trained with rule calo."""
    config = {"rule": "calo", "e_min": 0.3, "stable_status": [1], "invisible": [], "order": "energy"}
    path = tmp_path / "reco.root"
    with RecoWriter(path, provenance={"configuration": {"tokeniser": {"config": config}}}) as writer:
        writer.extend(pandora)
    return path


def test_the_targets_are_those_of_the_model_unless_told_otherwise(sample, of_model):
    settings = pflow.evaluate(of_model, sample, oracle=False).settings
    assert (settings.rule, settings.e_min) == ("calo", 0.3)
    assert truth_settings({"PFlow": [of_model]}, e_min=1.0) == EvaluationSettings(rule="calo", e_min=1.0)


def test_another_rule_than_the_models_is_said(of_model):
    with pytest.warns(ImplausibleWarning, match="'stable', its model was trained with 'calo'"):
        settings = truth_settings({"PFlow": [of_model]}, rule="stable")
    assert settings == EvaluationSettings(e_min=0.3)


def test_truth_without_a_target_is_an_error(sample, pandora):
    with pytest.raises(InputError, match="no true particle is a target under truth rule 'stable' above 1000 GeV"):
        pflow.evaluate(pandora, pflow.read_events(sample), settings=EvaluationSettings(e_min=1000.0))
