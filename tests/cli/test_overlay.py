import awkward as ak
import numpy as np
import pytest

from pflow.cli.main import run_parsed
from pflow.errors import ConfigError, InputError
from pflow.event.events import BadEntriesWarning
from pflow.io.flat import write_events
from pflow.io.open import read_events


def run(*words: object) -> int:
    return run_parsed("overlay", [str(word) for word in words])


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.root"


def test_entries_of_the_others_are_added_in_order_and_begin_again(sample_dir, out):
    paths = [sample_dir / "multi_test_small.root", sample_dir / "zqq_test_small.root"]
    assert run(*paths, "-o", out, "--chunk-size", "7") == 0
    base, partner, joined = (read_events(path) for path in (*paths, out))
    assert len(joined) == len(base) == 25
    n_base, n_partner, n_joined = (ak.to_numpy(ak.num(events.truth)) for events in (base, partner, joined))
    starts = [k for k in range(6) if np.array_equal(n_joined - n_base, n_partner[(k + np.arange(25)) % 6])]
    assert len(starts) == 1
    energies = [np.asarray(ak.sum(events.hits.energy, axis=1)) for events in (base, partner, joined)]
    assert energies[2] == pytest.approx(energies[0] + energies[1][(starts[0] + np.arange(25)) % 6], rel=1e-5)
    assert joined.event.tolist() == base.event.tolist()
    assert joined.reference is None


@pytest.fixture
def few(sample_dir, tmp_path):
    write_events(tmp_path / "few.root", read_events(sample_dir / "gammasep_test_small.root", entry_stop=8))
    return tmp_path / "few.root"


def test_an_event_is_not_joined_with_itself(few, out):
    for seed in range(2):
        assert run(few, few, "-o", out, "--seed", seed) == 0
        px = read_events(out).truth.momentum.px
        assert all(len(set(event)) == len(event) for event in px.to_list())


def test_rotations_follow_the_seed_and_leave_the_first_file(few, out):
    px = []
    for options in (("--rotate",), ("--rotate",), ("--rotate", "--seed", 2), ()):
        assert run(few, few, "-o", out, *options) == 0
        px.append(read_events(out).truth.momentum.px)
    assert ak.array_equal(px[0], px[1])
    assert not ak.array_equal(px[0], px[2])
    assert not ak.array_equal(px[0], px[3])
    assert ak.array_equal(px[0][:, 0], read_events(few).truth.momentum.px[:, 0])


def test_files_that_do_not_belong_together(sample_dir, out):
    with pytest.raises(ConfigError, match="two files or more"):
        run(sample_dir / "zqq_test_small.root", "-o", out)
    with pytest.raises(ConfigError, match=r"cld_multi_test_small.root is of detector 'cld', .* of 'ild_g4'"):
        run(sample_dir / "zqq_test_small.root", sample_dir / "cld_multi_test_small.root", "-o", out)
    assert not out.exists()


def test_events_joined_with_a_bad_entry_are_left_without_content(sample_dir, spoil, tmp_path, out):
    path = tmp_path / "bad.root"
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=4)
    write_events(path, spoil(events, 2, "hits.energy", -1.0, of_all=True))
    with pytest.raises(InputError, match=r"bad\.root, entry 2"):
        run(path, sample_dir / "gamma1_val_small.root", "-o", out)
    with pytest.warns(BadEntriesWarning, match="1 of 4 entries"):
        assert run(path, sample_dir / "gamma1_val_small.root", "-o", out, "--on-error", "skip") == 0
    n_hits = ak.num(read_events(out).hits).tolist()
    assert [n > 0 for n in n_hits] == [True, True, False, True]
