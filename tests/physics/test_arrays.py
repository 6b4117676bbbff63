"""Formulas give the same results for NumPy arrays and torch tensors."""

from functools import partial

import numpy as np
import pytest
import torch

from pflow.event.merge import Grid, Merge, cells_of, equal_cells, equal_rows, sum_hits
from pflow.physics.detector import load_detector
from pflow.physics.geometry import Geometry
from pflow.physics.kinematics import four_momentum_covariance, unit_vector
from pflow.tokens.features import Normaliser
from pflow.tokens.particles import Calibration, Curve, Response
from pflow.tokens.tokens import readout_columns

N = 50
RNG = np.random.default_rng(1)
VECTORS = RNG.normal(size=(4, N, 3))
VECTORS[:, 0] = 0.0
VECTORS[1, 1:3] = np.nan
NUMBERS = RNG.uniform(0.01, 2.0, size=(4, N))
CHARGES = RNG.integers(-1, 2, N).astype(float)
CURVES = {"photon": Curve((-2.0, -1.0, 0.0), (0.1, 0.3, -0.2)), "muon": Curve((-1.0,), (0.5,))}
RESPONSE = Response((-0.5, 0.1, 0.9), (0.3, -0.2, 0.1))
SCALE = Normaliser(names=("a", "b"), transforms=("log10", "identity"), mean=(0.1, 0.2), std=(2.0, 3.0))


def vectors(name, values, prefix=""):
    return {f"{name}.{prefix}{axis}": values[:, i] for i, axis in enumerate("xyz")}


def readout_of(momentum, entry, at_entry):
    tracks = {"charge": momentum[:, 0], **vectors("momentum", momentum, "p"), **vectors("calo_position", entry)}
    tracks |= vectors("calo_momentum", at_entry, "p")
    hits = {"energy": momentum[:, 0], **vectors("position", momentum)}
    return (*readout_columns(hits, tracks).values(), *readout_columns(hits, None).values())


def merged(detector, position, energy, time, subdetector, layer):
    """The sums of the cell of each hit of a detector."""
    hits = {"energy": energy, "time": time, "subdetector": subdetector, "layer": layer, **vectors("position", position)}
    cells = cells_of(hits, Grid.of(load_detector(detector), Merge(ecal_mm=3000.0, hcal_mm=4000.0, layers=2)))
    group, first = (equal_rows if isinstance(energy, np.ndarray) else equal_cells)(*cells)
    return tuple(values[group] for values in sum_hits(hits, group, first).values())


HITS = (2e3 * VECTORS[3], NUMBERS[0], np.where(CHARGES > 0, np.nan, NUMBERS[1]), np.arange(N) % 4, np.arange(N) % 7 - 1)


FORMULAS = {
    "unit_vector": (lambda x: (unit_vector(x), unit_vector(x, null=(0.0, 0.0, 1.0))), (VECTORS[0],)),
    "four_momentum_covariance": (four_momentum_covariance, (*NUMBERS[:2], unit_vector(VECTORS[0]), *NUMBERS[2:])),
    "readout_columns": (readout_of, tuple(VECTORS[[0, 1, 2]])),
    "merged": (partial(merged, "ild_g4"), HITS),
    "merged with a muon system": (partial(merged, "cld"), (*HITS[:3], 4 + HITS[3] % 2, HITS[4])),
    "calibration": (
        Calibration(energy=CURVES, direction=CURVES, track_energy=RESPONSE).apply,
        (*NUMBERS[:2], np.arange(N) % 5, CHARGES > 0, NUMBERS[2]),
    ),
    "response": (RESPONSE.factor, (NUMBERS[0], CHARGES > 0)),
    "depths": (Geometry.of(load_detector("cld")).depths, (0 * HITS[4], np.arange(N) % 6, *3e3 * (NUMBERS[:3] - 1.0))),
    "normalised": (lambda *xs: tuple(SCALE.normalised(xs)), tuple(NUMBERS[:2])),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_tensors_and_arrays_give_the_same(name):
    formula, arrays = FORMULAS[name]
    tensors = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    results = (result if isinstance(result, tuple) else (result,) for result in (formula(*tensors), formula(*arrays)))
    for tensor, array in zip(*results, strict=True):
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-12, atol=1e-12)
