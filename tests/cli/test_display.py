import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.schema import make_links
from pflow.inference.files import describe_input
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import open_events
from pflow.io.particles_root import RecoWriter


@pytest.fixture
def sample(sample_dir):
    return sample_dir / "multi_test_small.root"


@pytest.fixture
def reco(make_reco, tmp_path):
    """A reconstruction of three events, numbers 0, 1 and 7, of one photon each."""
    path = tmp_path / "reco.root"
    with RecoWriter(path, provenance={}) as writer:
        writer.extend(make_reco([0, 1, 7]))
    return path


def test_writes_each_format_and_refuses_another_before_any_work(sample, tmp_path, capsys, call):
    with pytest.raises(ConfigError, match=r"ends in \.png, \.pdf, \.html"):
        call("absent.root", "-o", tmp_path / "event.svg")
    starts = {tmp_path / "a.png": b"\x89PNG", tmp_path / "a.pdf": b"%PDF", tmp_path / "a.html": b"<!DOCTYPE html>"}
    assert call(sample, "--entry", 1, "-o", *starts) == 0
    assert all(path.read_bytes().startswith(start) for path, start in starts.items())
    assert capsys.readouterr().out == "".join(f"wrote {path}\n" for path in starts)


def test_without_a_name_a_figure_and_a_page_are_written(sample, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    call(sample, "--entry", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["display_2.html", "display_2.png"]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--colour", "subdetector"], "<p>hits coloured by subdetector."),
        (["--color", "subdetector"], "<p>hits coloured by subdetector."),
        ([], "true particles (2)"),  # a photon and a pi+
        (["--invisible", "22"], "true particles (1)"),
        (["--entry", 1, "--reco", "reco.root", "--colour", "reco"], "nearest PFlow particle in angle"),
        (["--entry", 7, "--reco", "reco.root", "--reco-entry", 2], "PFlow particles (1)"),  # of joined inputs
    ],
)
def test_the_page_shows_what_the_options_ask_for(sample, reco, tmp_path, monkeypatch, options, shown, call):
    monkeypatch.chdir(tmp_path)
    call(sample, *options, "-o", "event.html")
    assert shown in (tmp_path / "event.html").read_text()


def test_hits_of_an_edm4hep_file_are_coloured_by_the_particles_in_it(cld_sim_path, make_reco, tmp_path, call):
    """Input and output are one file: the events with our particles beside its own."""
    both = tmp_path / "both.root"
    with open_events(cld_sim_path, detector="cld") as file:
        made = make_reco(file.read().event, hit_links=make_links(source=[[0, 1]] * 3, particle=[[0, 0]] * 3))
        with Edm4hepRecoWriter(both, file, provenance={}) as writer:
            writer.extend(made)
    call(both, "--detector", "cld", "--reco", both, "--colour", "reco", "-o", tmp_path / "event.png")
    assert (tmp_path / "event.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--entry", 2, "--reco", "reco.root"], r"entry 2: is event number 2, in reconstruction 'PFlow' 7"),
        (["--entry", 3, "--reco", "reco.root", "--reco-entry", 3], r"reco\.root, entry 3: there is no such entry"),
        (["--entry", 25], r"multi_test_small\.root, entry 25: there is no such entry; .* has 25"),
    ],
)
def test_an_entry_that_is_another_event_or_not_there_is_refused(
    sample, reco, tmp_path, monkeypatch, options, message, call
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        call(sample, *options, "-o", "event.png")


def test_a_reconstruction_of_another_file_is_refused(sample, make_reco, tmp_path, call):
    with open_events(sample.with_name("gamma1_test_small.root")) as file:
        made = {"inputs": [describe_input(file) | {"entries": 3}]}
    links = make_links(source=[[9999]] * 3, particle=[[0]] * 3)
    for provenance, more, message in (
        (made, {}, r"was made from .*gamma1_test_small\.root and not from .*multi_test_small\.root"),
        ({}, {"hit_links": links}, r"found 9999 at index 0; made from another file\?"),
    ):
        with RecoWriter(tmp_path / "other.root", provenance=provenance, force=True) as writer:
            writer.extend(make_reco([0, 1, 2], **more))
        with pytest.raises(InputError, match=message):
            call(sample, "--reco", tmp_path / "other.root", "--colour", "reco", "-o", tmp_path / "event.png")
