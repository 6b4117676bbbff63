import awkward as ak
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, Flag
from pflow.event.jagged import assigned_particle
from pflow.event.schema import make_hits
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.physics.detector import load_detector


def test_from_hdf5_to_root(tmp_path, sample_dir, call):
    old = sample_dir / "gamma1_small.h5"
    assert call(old, tmp_path / "new.root", "--chunk-size", "4") == 0
    legacy, converted = read_events(old), read_events(tmp_path / "new.root")
    for (name, before), (_, after) in zip(legacy.parts(), converted.parts(), strict=True):
        if not name.endswith("links"):
            assert str(before.to_list()) == str(after.to_list()), name  # as text, in which NaN equals NaN
    before, after = (assigned_particle(events.hit_links, events.hits) for events in (legacy, converted))
    assert before.to_list() == after.to_list()


def test_from_edm4hep_to_a_flat_ntuple(tmp_path, cld_path, call):
    assert call(cld_path, tmp_path / "flat.root") == 0
    events = read_events(tmp_path / "flat.root").validate()
    assert events.detector.name == "cld"
    assert (len(events.hits[0]), len(events.tracks[0])) == (2602, 20)


def test_an_unknown_ending(tmp_path, sample_dir, call):
    with pytest.raises(ConfigError, match=r"cannot write .*: expected a ROOT file"):
        call(sample_dir / "multi_test_small.root", tmp_path / "new.h5")


def test_bad_entries_can_be_left_empty(tmp_path, call):
    ones = ak.Array([[1.0], [1.0], [1.0]])
    hits = make_hits(energy=ak.Array([[1.0], [-1.0], [3.0]]), x=ones, y=ones, z=ones)
    write_events(tmp_path / "in.root", Events(detector=load_detector("ild_g4"), hits=hits))
    with pytest.raises(InputError, match="entry 1"):
        call(tmp_path / "in.root", tmp_path / "new.root")
    with pytest.warns(UserWarning, match="1 of 3 entries"):
        call(tmp_path / "in.root", tmp_path / "new.root", "--on-error", "skip")
    assert read_events(tmp_path / "new.root").hits.energy.to_list() == [[1.0], [], [3.0]]


def test_tracks_from_monte_carlo_particles_stay_marked(tmp_path, cld_sim_path, capsys, call):
    made = tmp_path / "flat.root"
    assert call(cld_sim_path, made, "--truth-tracks") == 0
    assert "with tracks made from Monte Carlo particles" in capsys.readouterr().out
    assert read_events(made).flags.tolist() == 3 * [Flag.TRUTH_TRACKS]
