import dataclasses
import functools
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import ConfigError, InputError
from pflow.event.events import Flag, Reconstruction
from pflow.event.schema import make_links, make_particles
from pflow.io.edm4hep.podio import PARTICLE_MEMBERS as MEMBERS
from pflow.io.particles_root import BASKET, FORMATS, RecoWriter, read_provenance, read_reco

PROVENANCE = {"inputs": [{"path": "in.root", "uuid": "ab-12"}], "version": "0.1.0", "note": "überall"}


def made(pdg, first=100, flags=None, *, optional=False) -> Reconstruction:
    """Particles with these codes and numbers that differ from each other; `optional`: with all optional parts."""
    codes = ak.values_astype(ak.Array([*pdg, [0]])[:-1], np.int64)
    index, counts = ak.local_index(codes), ak.num(codes).to_numpy()
    columns = {name: factor * (index + 1) for name, factor in {"energy": 9.0, "px": 1.5, "py": -2.5, "pz": 4.0}.items()}
    links = {}
    if optional:
        n = int(counts.sum())
        numbers = {"scores": np.arange(5.0 * n).reshape(n, 5), "covariance": np.arange(10.0 * n).reshape(n, 10)}
        numbers["existence"] = np.linspace(0.1, 1.0, n)
        columns |= {name: ak.unflatten(values, counts) for name, values in numbers.items()}
        hits = make_links(source=7 * index, particle=index, weight=0.25 + 0 * index, normalise=False)
        links = {"hit_links": hits, "track_links": make_links(source=5 + index, particle=index)}
    return Reconstruction(
        particles=make_particles(pdg=codes, charge=codes % 2, score=1 / (index + 1), **columns),
        event=np.arange(first, first + len(pdg)),
        flags=np.array(flags or [0] * len(pdg), dtype=np.uint32),
        **links,
    )


complete = functools.partial(made, optional=True)


def with_candidates(pdg: Any, candidates: Any) -> Reconstruction:
    return dataclasses.replace(complete(pdg), candidates=complete(candidates).particles)


@pytest.fixture
def write(tmp_path: Path, format: Any) -> Callable[..., Path]:

    def write_chunks(*chunks: Reconstruction, provenance: Any = PROVENANCE, **options: Any) -> Path:
        with RecoWriter(tmp_path / "out.root", provenance=provenance, format=format, force=True, **options) as writer:
            for chunk in chunks:
                writer.extend(chunk)
        return tmp_path / "out.root"

    return write_chunks


FOUR = [[22], [], [11, 13, 211], [130]]


@pytest.mark.parametrize("format", FORMATS)
class TestBothFormats:
    @pytest.mark.parametrize(
        ("whole", "cuts"),
        [
            (made([[22, -211], [], [130]], flags=[0, int(Flag.BAD_INPUT), int(Flag.MAX_PARTICLES)]), []),
            (made([*FOUR, [22, 22]]), [2, 2, 3]),
            (made([[22] * (i % 4) for i in range(2 * BASKET + 50)]), range(150, 2 * BASKET, 150)),
            (complete(FOUR), [2, 2]),
            (with_candidates(FOUR, [[], [22], [22, 130], []]), [1, 2]),
        ],
        ids=["flags", "chunks", "many chunks", "links, scores and covariances", "candidates"],
    )
    def test_reading_returns_the_written_reconstruction(self, write, whole, cuts, same_reco):
        ends = [0, *cuts, len(whole)]
        read = read_reco(write(*(whole[start:stop] for start, stop in pairwise(ends))))
        assert same_reco(read, whole)

    def test_branches_are_named_and_typed_as_documented(self, write):
        scores = ("charged_hadron", "neutral_hadron", "photon", "electron", "muon")
        elements = ("xx", "xy", "yy", "xz", "yz", "zz", "xt", "yt", "zt", "tt")
        members = [*MEMBERS, "existence", *(f"pid_{name}" for name in scores), *(f"covMatrix.{xy}" for xy in elements)]
        types = {f"{name}.{member}": "float32" for name in ("PFlow", "PFlowCandidate") for member in members}
        types |= dict.fromkeys(("PFlow.PDG", "PFlowCandidate.PDG"), "int32")
        for collection, source in (("PFlowCaloHitLink", "hit"), ("PFlowTrackLink", "track")):
            types |= {f"{collection}.{source}": "int32", f"{collection}.particle": "int32"}
            types[f"{collection}.weight"] = "float32"
        with uproot.open(write(with_candidates([[22, 11], []], [[130], [22, 22]]))) as file:
            table = file["events"]
            assert table["PFlow.PDG"].array().to_list() == [[22, 11], []]
            assert table["PFlowCandidate.PDG"].array().to_list() == [[130], [22, 22]]
            for branch, kind in types.items():
                assert str(table[branch].array().type) == f"2 * var * {kind}"
            assert [str(table[name].array().type) for name in ("event", "flags")] == ["2 * int64", "2 * uint32"]
            assert table["PFlow.pid_photon"].array().to_list() == [[2.0, 7.0], []]
            assert table["PFlow.covMatrix.tt"].array().to_list() == [[9.0, 19.0], []]

    def test_what_the_algorithm_does_not_say_is_not_written(self, write):
        path = write(made([[22, 11], []]))
        with uproot.open(path) as file:
            keys = file["events"].keys()
        assert not [key for key in keys if any(part in key for part in ("Link", "pid", "cov", "existence"))]
        read = read_reco(path)
        assert (read.hit_links, read.track_links) == (None, None)
        assert not {"scores", "covariance"} & set(read.particles.fields)

    @pytest.mark.parametrize("at", [0, 1, 2])
    def test_a_chunk_without_particles_may_lack_optional_parts(self, write, at):
        chunks = [complete([[22], [211, 13]]), complete([[130]])]
        chunks.insert(at, made([[], []]))
        read = read_reco(write(*chunks), links="required")
        counts = [events for chunk in chunks for events in ak.num(chunk.particles).to_list()]
        assert ak.num(read.particles.scores).to_list() == ak.num(read.hit_links).to_list() == counts
        assert read.event.tolist() == [number for chunk in chunks for number in chunk.event.tolist()]

    def test_without_particles_the_chunks_set_the_branches(self, write):
        read = read_reco(write(made([[], []]), complete([[], []])), links="required")
        assert ak.num(read.hit_links).to_list() == ak.num(read.particles.covariance).to_list() == [0] * 4

    def test_hit_links_can_be_left_out_and_are_named_where_required(self, write, same_reco):
        written = complete([[22, 11], []])
        assert same_reco(read_reco(write(written), links="left out"), dataclasses.replace(written, hit_links=None))
        with pytest.raises(InputError, match=r"'PFlow': holds no links .* which hits the particles are made of"):
            read_reco(write(made([[22]])), links="required")
        with pytest.raises(ConfigError, match="no links 'none': expected one of if there, required, left out"):
            read_reco(write(written), links="none")

    @pytest.mark.parametrize(
        ("part", "field", "branch", "value", "message"),
        [
            ("hit_links", "particle", "PFlowCaloHitLink", 3, "list, as one of another event may, found 3"),
            ("hit_links", "weight", "PFlowCaloHitLink", -0.5, "at least 0, found -0.5"),
            ("particles", "energy", "PFlow", np.nan, "expected finite numbers"),
        ],
    )
    def test_invalid_numbers_are_neither_written_nor_read(
        self, write, part, field, branch, value, message, monkeypatch, tmp_path
    ):
        """Particles cut in memory had stale links, and no reader would take the file that was written."""
        good = complete([[22], [], [11, 13, 211], [130]])
        values = getattr(good, part)[field].to_list()
        values[3][-1] = value
        wrong = ak.with_field(getattr(good, part), ak.Array(values), field)
        wrong = dataclasses.replace(good, **{part: wrong})
        with pytest.raises(InputError, match=message) as in_writing:
            write(wrong[:2], wrong[2:])
        assert not list(tmp_path.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr("pflow.io.particles_root._check", lambda *_: None)
            path = write(wrong)
        with pytest.raises(InputError, match=message) as caught:
            read_reco(path, entry_start=1)
        for error in (in_writing.value, caught.value):
            assert (error.file, error.entry, error.field) == (str(path), 3, f"{branch}.{field}")

    def test_the_truth_rule_of_the_training_is_kept(self, write):
        rule = {"rule": "calo", "e_min": 1.0, "stable_status": [1], "invisible": []}
        path = write(dataclasses.replace(made([[22]]), trained_with=rule), made([[22]]))
        assert read_reco(path).trained_with == rule

    def test_no_events_the_provenance_and_a_range_of_entries(self, write, same_reco):
        path = write()
        assert same_reco(read_reco(path), made([[22]])[:0])
        assert read_provenance(path) == PROVENANCE
        written = made([*FOUR, [22]])
        path = write(written)
        assert same_reco(read_reco(path, entry_start=1, entry_stop=3), written[1:3])
        for wrong in ({"entry_start": -2}, {"entry_stop": -1}, {"entry_stop": 2.7}):
            with pytest.raises(ConfigError, match="entries are counted from 0 in whole numbers, found"):
                read_reco(path, **wrong)
        with pytest.warns(UserWarning, match="no events are read: entry_start is 5, and there are 5 entries"):
            assert len(read_reco(path, entry_start=5)) == 0

    @pytest.mark.parametrize(
        "change",
        [
            lambda p: 2 * p,
            lambda p: p.rotateZ(0.5),
            lambda p: p.to_ptphietamass(),
            lambda p: ak.values_astype(p, np.float64),
        ],
        ids=["scaled", "rotated", "pt", "types"],
    )
    def test_what_vector_makes_of_particles_can_be_written(self, write, change):
        whole = with_candidates(FOUR, FOUR)
        particles = change(whole.particles)
        read = read_reco(write(dataclasses.replace(whole, particles=particles, candidates=particles)))
        for of in (read.particles, read.candidates):
            for name in ("energy", "px", "py", "pz", "mass"):
                assert ak.all(ak.isclose(getattr(of, name), getattr(particles, name), rtol=1e-5))
            assert of.pdg.to_list() == FOUR
            assert ak.almost_equal(of.covariance, particles.covariance, dtype_exact=False)
            assert str(of.pdg.type) == "4 * var * int32"

    def test_another_name(self, write):
        path = write(made([[22, 11]]), name="Mine")
        assert read_reco(path, name="Mine").name == "Mine"
        with pytest.raises(InputError, match=r"'PFlow\.PDG': no such branch"):
            read_reco(path)

    @pytest.mark.parametrize(("before", "order"), [([], 1), (["out.root"], -1)])
    def test_chunks_of_different_parts_leave_the_old_file(self, tmp_path, write, before, order):
        earlier = "before, with a pflow_provenance"
        for name in before:
            (tmp_path / name).write_text(earlier)
        with pytest.raises(ValueError, match="chunks of one reconstruction differ"):
            write(*[made([[22]] * BASKET), complete([[22]])][::order])
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(before, earlier)


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("in.root", {"inputs": ["in.root"]}, "it is the input"),
        ("out.root", {"format": "parquet"}, "no output format 'parquet': expected one of ttree, rntuple"),
        ("out.root", {"name": "my particles"}, "cannot name a collection"),
        *(("out.root", {"provenance": made}, "cannot be stored as JSON") for made in ({"model": object()}, ["model"])),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch, file, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.root").write_text("precious")
    with pytest.raises(ConfigError, match=message):
        RecoWriter(file, **options)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"in.root": "precious"}


def test_particles_are_not_lost_outside_of_the_with_block(tmp_path):
    writer, chunk, message = RecoWriter(tmp_path / "out.root"), made([[22]]), "extend it inside of its with block"
    with pytest.raises(ConfigError, match=message):
        writer.extend(chunk)
    with writer:
        writer.extend(chunk)
    with pytest.raises(ConfigError, match=message):
        writer.extend(chunk)


def test_a_root_file_without_provenance(tmp_path):
    with uproot.recreate(tmp_path / "other.root") as file:
        file["text"] = "nothing of ours"
    with pytest.raises(InputError, match="holds no provenance"):
        read_provenance(tmp_path / "other.root")


@pytest.mark.parametrize("format", ["ttree"])
@pytest.mark.parametrize(
    ("branch", "last", "message"),
    [
        ("PFlow.pid_muon", None, "not found"),
        ("PFlowTrackLink.weight", None, "not found"),
        ("PFlow.energy", -1, r"1 values, expected 2, the number in 'PFlow\.PDG'"),
        ("PFlow.covMatrix.xx", -1, r"1 values, expected 2, the number in 'PFlow\.PDG'"),
        ("PFlowTrackLink.weight", -1, r"1 values, expected 2, the number in 'PFlowTrackLink\.track'"),
    ],
)
def test_a_branch_that_is_missing_or_too_short_is_refused(tmp_path, write, branch, last, message):
    with uproot.open(write(complete([[], [22, 11]]))) as file:
        keys = file["events"].keys()
        columns = {key: file["events"][key].array() for key in keys if not key.startswith("n_")}
    columns[branch] = columns[branch][:, :last]
    if last is None:
        del columns[branch]
    with uproot.recreate(tmp_path / "part.root") as file:
        file.mktree("events", {key: str(column.type.content) for key, column in columns.items()}).extend(columns)
    with pytest.raises(InputError, match=message) as caught:
        read_reco(tmp_path / "part.root")
    assert caught.value.field == branch
    assert caught.value.entry == (0 if last is None else 1)
