import pytest

from pflow.io.draft.collect import collect
from pflow.io.draft.measure import measure_digitisation, measure_time_window
from pflow.io.edm4hep.podio import open_podio


@pytest.fixture
def windows(data_dir):
    """Time window of each calorimeter of the real event, with its scale, or its scale times a factor."""
    file = open_podio(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
    groups = collect(file, 1).groups

    def measure(factor=1.0):
        found = {}
        for group in groups:
            own = measure_digitisation(group)
            if own is not None:
                wrong = own._replace(scale=own.scale * factor)
                found[group.name] = measure_time_window(file, group, wrong, 1)
        return found

    yield measure
    file.close()


def test_the_real_digitisation_stops_at_ten_nanoseconds(windows):
    found = windows()
    assert found.pop("muon") is None  # no time is measured there
    assert set(found) == {"ecal_barrel", "ecal_endcap", "hcal_barrel", "hcal_endcap"}
    for window in found.values():
        assert window is not None
        assert window.latest == 10.0
        assert window.explained > 0.99 * window.n_cells
        assert window.explained_without < 0.96 * window.n_cells


def test_another_scale_is_explained_by_no_time(windows):
    assert set(windows(1.1).values()) == {None}
