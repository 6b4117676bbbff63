from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import ConfigError, InputError
from pflow.event.build import make_links, make_particles
from pflow.event.events import Flag
from pflow.event.particles import Reconstruction
from pflow.io.particles_root import BASKET, FORMATS, MEMBERS, RecoWriter, iterate_reco, read_provenance, read_reco

PROVENANCE = {"inputs": [{"path": "in.root", "uuid": "ab-12"}], "version": "0.1.0", "note": "überall"}


def particles(pdg: list[list[int]]) -> ak.Array:
    """Particles with these codes and numbers that differ from each other."""
    jagged = ak.Array(pdg)
    if not ak.sum(ak.num(jagged)):
        jagged = ak.values_astype(ak.Array([*pdg, [0]])[:-1], np.int64)
    index = ak.local_index(jagged, axis=1) + 1
    return make_particles(
        pdg=jagged,
        charge=jagged % 2,
        energy=9.0 * index,
        px=1.5 * index,
        py=-2.5 * index,
        pz=4.0 * index,
        score=1 / index,
    )


def made(pdg: list[list[int]], first: int = 100, flags: list[int] | None = None) -> Reconstruction:
    return Reconstruction(
        particles=particles(pdg),
        event=np.arange(first, first + len(pdg)),
        flags=np.array(flags or [0] * len(pdg), dtype=np.uint32),
    )


def complete(pdg: list[list[int]], first: int = 100) -> Reconstruction:
    """As `made`, with numbers that differ from each other for scores, covariances and links."""
    whole = made(pdg, first)
    counts = ak.num(whole.particles).to_numpy()
    index = ak.local_index(whole.particles, axis=1)
    arrays = {
        name: ak.unflatten(np.arange(counts.sum() * width, dtype=np.float32).reshape(-1, width), counts)
        for name, width in (("scores", 5), ("covariance", 10))
    }
    records = whole.particles
    for name, values in arrays.items():
        records = ak.with_field(records, values, name)
    return dataclasses.replace(
        whole,
        particles=records,
        hit_links=make_links(source=7 * index, particle=index, weight=0.25 + 0 * index, normalise=False),
        track_links=make_links(source=5 + index, particle=index),
    )


def same(a: Reconstruction, b: Reconstruction) -> bool:
    return (
        a.particles.type.content == b.particles.type.content
        and a.particles.to_list() == b.particles.to_list()
        and a.event.tolist() == b.event.tolist()
        and a.flags.tolist() == b.flags.tolist()
    )


def write_half(path: Path, format: Any) -> None:
    with RecoWriter(path, provenance={}, format=format) as writer:
        writer.extend(made([[22]] * BASKET))
        raise RuntimeError("half-way")


@pytest.mark.parametrize("format", FORMATS)
class TestBothFormats:
    def test_what_is_read_is_what_was_written(self, tmp_path, format):
        reconstruction = made([[22, -211], [], [130]], flags=[0, int(Flag.BAD_INPUT), int(Flag.MAX_PARTICLES)])
        with RecoWriter(tmp_path / "out.root", provenance=PROVENANCE, format=format) as writer:
            writer.extend(reconstruction)
        assert same(read_reco(tmp_path / "out.root"), reconstruction)

    def test_chunks_join_to_one_file(self, tmp_path, format):
        whole = made([[22], [], [11, 13, 211], [130], [22, 22]])
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            for chunk in (whole[:2], whole[2:2], whole[2:3], whole[3:]):
                writer.extend(chunk)
        assert same(read_reco(tmp_path / "out.root"), whole)

    def test_many_chunks(self, tmp_path, format):
        whole = made([[22] * (i % 4) for i in range(2 * BASKET + 50)])
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            for start in range(0, len(whole), 150):
                writer.extend(whole[start : start + 150])
        assert same(read_reco(tmp_path / "out.root"), whole)

    def test_links_scores_and_covariances_are_read_as_written(self, tmp_path, format):
        whole = complete([[22], [], [11, 13, 211], [130]])
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            for chunk in (whole[:2], whole[2:2], whole[2:]):
                writer.extend(chunk)
        read = read_reco(tmp_path / "out.root")
        assert same(read, whole)
        for mine, theirs in ((read.hit_links, whole.hit_links), (read.track_links, whole.track_links)):
            assert mine is not None
            assert theirs is not None
            assert mine.type.content == theirs.type.content
            assert mine.to_list() == theirs.to_list()

    def test_the_optional_branches_are_named_and_typed_as_documented(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(complete([[22, 11], []]))
        scores = ("charged_hadron", "neutral_hadron", "photon", "electron", "muon")
        elements = ("xx", "xy", "yy", "xz", "yz", "zz", "xt", "yt", "zt", "tt")
        wanted = dict.fromkeys([f"PFlow.pid_{name}" for name in scores], "float32")
        wanted |= dict.fromkeys([f"PFlow.covMatrix.{name}" for name in elements], "float32")
        for collection, source in (("PFlowCaloHitLink", "hit"), ("PFlowTrackLink", "track")):
            wanted |= {f"{collection}.{source}": "int32", f"{collection}.particle": "int32"}
            wanted[f"{collection}.weight"] = "float32"
        with uproot.open(tmp_path / "out.root") as file:
            for branch, kind in wanted.items():
                assert str(file["events"][branch].array().type) == f"2 * var * {kind}"
            assert file["events"]["PFlow.pid_photon"].array().to_list() == [[2.0, 7.0], []]
            assert file["events"]["PFlow.covMatrix.tt"].array().to_list() == [[9.0, 19.0], []]

    def test_what_the_algorithm_does_not_say_is_not_written(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(made([[22, 11], []]))
        with uproot.open(tmp_path / "out.root") as file:
            keys = file["events"].keys()
        assert not [key for key in keys if "Link" in key or "pid" in key or "cov" in key]
        read = read_reco(tmp_path / "out.root")
        assert (read.hit_links, read.track_links) == (None, None)
        assert not {"scores", "covariance"} & set(read.particles.fields)

    @pytest.mark.parametrize("at", [0, 1, 2])
    def test_a_chunk_without_particles_may_lack_what_the_others_have(self, tmp_path, format, at):
        chunks = [complete([[22], [211, 13]]), complete([[130]])]
        chunks.insert(at, made([[], []]))
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            for chunk in chunks:
                writer.extend(chunk)
        read = read_reco(tmp_path / "out.root", links="required")
        wanted = [events for chunk in chunks for events in ak.num(chunk.particles).to_list()]
        assert ak.num(read.particles.scores).to_list() == ak.num(read.hit_links).to_list() == wanted
        assert read.event.tolist() == [number for chunk in chunks for number in chunk.event.tolist()]

    def test_what_only_a_chunk_without_particles_has_is_not_written(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            for chunk in (complete([[]]), made([[22]] * BASKET), complete([[]])):
                writer.extend(chunk)
        read = read_reco(tmp_path / "out.root")
        assert (len(read), read.hit_links) == (BASKET + 2, None)

    def test_without_any_particles_the_branches_are_those_of_the_chunks(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(made([[], []]))
            writer.extend(complete([[], []]))
        read = read_reco(tmp_path / "out.root", links="required")
        assert ak.num(read.hit_links).to_list() == ak.num(read.particles.covariance).to_list() == [0] * 4

    def test_links_can_be_left_out_of_reading(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(complete([[22, 11], []]))
        read = read_reco(tmp_path / "out.root", links="left out")
        assert (read.hit_links, read.track_links) == (None, None)
        assert "scores" in read.particles.fields

    def test_links_that_are_required_and_not_there_are_named(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(made([[22]]))
        with pytest.raises(InputError, match=r"'PFlowCaloHitLink\.hit': .* which hits the particles are made of"):
            next(iterate_reco(tmp_path / "out.root", links="required"))

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [("particle", 3, "points outside the event's list, found 3"), ("weight", -0.5, "at least 0, found -0.5")],
    )
    def test_links_that_cannot_be_name_file_entry_and_branch(self, tmp_path, format, field, value, message):
        whole = complete([[22], [], [11, 13, 211], [130]])
        assert whole.hit_links is not None
        values = whole.hit_links[field].to_list()
        values[3][-1] = value
        wrong = ak.with_field(whole.hit_links, ak.Array(values), field)
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(dataclasses.replace(whole, hit_links=wrong))
        with pytest.raises(InputError, match=message) as caught:
            read_reco(tmp_path / "out.root", entry_start=1)
        assert caught.value.entry == 3
        assert (caught.value.file, caught.value.field) == (str(tmp_path / "out.root"), f"PFlowCaloHitLink.{field}")

    def test_no_events(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance=PROVENANCE, format=format):
            pass
        assert same(read_reco(tmp_path / "out.root"), made([[22]])[:0])
        assert read_provenance(tmp_path / "out.root") == PROVENANCE

    def test_a_range_of_entries(self, tmp_path, format):
        whole = made([[22], [], [11, 13, 211], [130]])
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(whole)
        assert same(read_reco(tmp_path / "out.root", entry_start=1, entry_stop=3), whole[1:3])

    def test_iteration_covers_everything_in_order(self, tmp_path, format):
        whole = made([[22], [], [11, 13, 211], [130], [22]])
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(whole)
        chunks = list(iterate_reco(tmp_path / "out.root", chunk_size=2))
        assert [len(chunk) for chunk in chunks] == [2, 2, 1]
        assert all(same(chunk, whole[2 * i : 2 * i + 2]) for i, chunk in enumerate(chunks))

    def test_provenance(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance=PROVENANCE, format=format) as writer:
            writer.extend(made([[22]]))
        assert read_provenance(tmp_path / "out.root") == PROVENANCE

    def test_another_name(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format, name="Mine") as writer:
            writer.extend(made([[22, 11]]))
        assert read_reco(tmp_path / "out.root", name="Mine").name == "Mine"
        with pytest.raises(InputError, match=r"'PFlow\.PDG': no such branch"):
            read_reco(tmp_path / "out.root")

    def test_branches_are_named_and_typed_as_documented(self, tmp_path, format):
        with RecoWriter(tmp_path / "out.root", provenance={}, format=format) as writer:
            writer.extend(made([[22, 11], []]))
        with uproot.open(tmp_path / "out.root") as file:
            table = file["events"]
            kinds = {"PDG": "int32"}
            for member in MEMBERS:
                assert str(table[f"PFlow.{member}"].array().type) == f"2 * var * {kinds.get(member, 'float32')}"
            assert str(table["event"].array().type) == "2 * int64"
            assert str(table["flags"].array().type) == "2 * uint32"

    def test_a_failure_half_way_leaves_nothing(self, tmp_path, format):
        with pytest.raises(RuntimeError, match="half-way"):
            write_half(tmp_path / "out.root", format)
        assert os.listdir(tmp_path) == []

    def test_a_failure_half_way_does_not_touch_an_existing_file(self, tmp_path, format):
        (tmp_path / "out.root").write_text("before")
        with pytest.raises(RuntimeError, match="half-way"):
            write_half(tmp_path / "out.root", format)
        assert (tmp_path / "out.root").read_text() == "before"
        assert os.listdir(tmp_path) == ["out.root"]


def test_the_ttree_has_a_counter_as_root_expects(tmp_path):
    with RecoWriter(tmp_path / "out.root", provenance={}) as writer:
        writer.extend(made([[22, -211], []]))
    with uproot.open(tmp_path / "out.root") as file:
        tree = file["events"]
        assert tree["n_PFlow"].array().to_list() == [2, 0]
        leaf = tree["PFlow.momentum.x"].member("fLeaves")[0]
        assert leaf.member("fLeafCount").member("fName") == "n_PFlow"
        assert tree["PFlow.momentum.x"].title == "PFlow.momentum.x[n_PFlow]/F"


def test_an_unknown_score_stays_unknown(tmp_path):
    one = ak.Array([[1.0]])
    unscored = make_particles(pdg=ak.Array([[22]]), charge=one * 0, energy=one, px=one, py=one * 0, pz=one * 0)
    with RecoWriter(tmp_path / "out.root", provenance={}) as writer:
        writer.extend(Reconstruction(particles=unscored, event=np.array([1]), flags=np.array([0], np.uint32)))
    assert np.isnan(read_reco(tmp_path / "out.root").particles.score[0, 0])


def test_the_missing_folder_is_named_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        RecoWriter(tmp_path / "nowhere" / "out.root", provenance={})


def test_an_input_is_not_overwritten(tmp_path):
    (tmp_path / "in.root").write_text("precious")
    with pytest.raises(ConfigError, match="it is the input"):
        RecoWriter(tmp_path / "in.root", provenance={}, inputs=[tmp_path / "in.root"])
    assert (tmp_path / "in.root").read_text() == "precious"


def test_an_unknown_format(tmp_path):
    with pytest.raises(ConfigError, match="no output format 'parquet': expected one of ttree, rntuple"):
        RecoWriter(tmp_path / "out.root", provenance={}, format="parquet")  # type: ignore[arg-type]


def test_a_name_that_no_branch_can_have(tmp_path):
    with pytest.raises(ConfigError, match="cannot name a collection"):
        RecoWriter(tmp_path / "out.root", provenance={}, name="my particles")


def test_provenance_that_json_cannot_hold(tmp_path):
    with pytest.raises(ConfigError, match="cannot be stored as JSON"):
        RecoWriter(tmp_path / "out.root", provenance={"model": object()})


def test_a_step_of_nothing(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        next(iterate_reco(tmp_path / "out.root", chunk_size=0))


def test_a_root_file_without_provenance(tmp_path):
    with uproot.recreate(tmp_path / "other.root") as file:
        file["text"] = "nothing of ours"
    with pytest.raises(InputError, match="holds no provenance"):
        read_provenance(tmp_path / "other.root")


@pytest.mark.parametrize("missing", ["PFlow.pid_muon", "PFlow.covMatrix.zt", "PFlowTrackLink.weight"])
def test_a_part_of_what_is_optional_is_not_enough(tmp_path, missing):
    with RecoWriter(tmp_path / "out.root", provenance={}) as writer:
        writer.extend(complete([[22, 11], []]))
    with uproot.open(tmp_path / "out.root") as file:
        keys = file["events"].keys()
        columns = {key: file["events"][key].array() for key in keys if not key.startswith("n_")}
    del columns[missing]
    with uproot.recreate(tmp_path / "part.root") as file:
        file.mktree("events", {key: str(column.type.content) for key, column in columns.items()}).extend(columns)
    with pytest.raises(InputError, match="no such branch") as caught:
        read_reco(tmp_path / "part.root")
    assert caught.value.field == missing


@pytest.mark.parametrize("order", [1, -1])
def test_chunks_that_differ_in_what_they_hold_are_refused(tmp_path, order):
    first, second = [made([[22]]), complete([[22]])][::order]
    with RecoWriter(tmp_path / "out.root", provenance={}) as writer:
        writer.extend(first)
        with pytest.raises(ValueError, match="chunks of one reconstruction differ"):
            writer.extend(second)
