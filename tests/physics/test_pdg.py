import numpy as np

from pflow.physics import pdg


def test_charges_of_known_particles_are_theirs_and_of_others_0():
    known = {11: -1, -11: 1, 22: 0, 211: 1, -321: -1, 2112: 0, 2212: 1, 15: -1, 1000010020: 1}
    expected = {**known, 0: 0, 987654321: 0}
    assert {code: pdg.charge_of(code) for code in expected} == expected


def test_classes():
    codes = {"photon": [22], "electron": [-11], "muon": [13], "charged_hadron": [-211, 2212, 15]}
    codes["neutral_hadron"] = [130, -2112, 12, 0]
    assert {name: [*map(pdg.class_of, some)] for name, some in codes.items()} == {
        name: [name] * len(some) for name, some in codes.items()
    }


def test_arrays_keep_their_shape_and_types():
    codes = np.array([[22, 11], [211, 22]])
    assert pdg.charges(codes).tolist() == [[0.0, -1.0], [1.0, 0.0]]
    assert pdg.class_index(codes).tolist() == [[2, 3], [0, 2]]
    dtypes = [look_up(codes).dtype for look_up in (pdg.charges, pdg.masses, pdg.class_index)]
    assert dtypes == [np.float32, np.float64, np.int64]
    assert pdg.masses(codes)[0].tolist() == [pdg.mass_of(987654321), pdg.mass_of(11)] == [0.0, pdg.mass_of(11)]
    unseen = [12, -14, 16, 1000022, 39, 1023, 9900012, 54]
    assert pdg.is_invisible(unseen).all()
    assert pdg.is_invisible([22, -13, 2112, 999, -999], more=[999]).tolist() == [False, False, False, True, True]
