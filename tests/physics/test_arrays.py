"""Formulas give the same results for NumPy arrays and torch tensors."""

import numpy as np
import pytest
import torch

from pflow.physics.kinematics import four_momentum_covariance, impact_parameters, unit_vector
from pflow.tokens.particles import momentum_and_energy
from pflow.tokens.readout import entry_of_tracks
from pflow.tokens.scale import Normaliser
from pflow.tokens.uncertainty import Curve, UncertaintyCalibration

N = 50
RNG = np.random.default_rng(1)
VECTORS = RNG.normal(size=(4, N, 3))
VECTORS[:, 0] = 0.0
VECTORS[1, 1:3] = np.nan
NUMBERS = RNG.uniform(0.01, 2.0, size=(4, N))
CHARGES = RNG.integers(-1, 2, N).astype(float)
CURVES = {"photon": Curve((-2.0, -1.0, 0.0), (0.1, 0.3, -0.2)), "muon": Curve((-1.0,), (0.5,))}
SCALE = Normaliser(names=("a", "b"), transforms=("log10", "identity"), mean=(0.1, 0.2), std=(2.0, 3.0))

FORMULAS = {
    "impact_parameters": (lambda *xs: impact_parameters(*xs, 3.5), (*1e3 * VECTORS[0].T, *VECTORS[2].T, CHARGES)),
    "unit_vector": (lambda x: (unit_vector(x), unit_vector(x, null=(0.0, 0.0, 1.0))), (VECTORS[0],)),
    "four_momentum_covariance": (four_momentum_covariance, (*NUMBERS[:2], unit_vector(VECTORS[0]), *NUMBERS[2:])),
    "momentum_and_energy": (momentum_and_energy, tuple(NUMBERS[:2])),
    "entry_of_tracks": (entry_of_tracks, tuple(VECTORS[[0, 1, 2]])),
    "apply_curves": (
        UncertaintyCalibration(energy=CURVES, direction=CURVES).apply_curves,
        (*NUMBERS[:2], np.arange(N) % 5),
    ),
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
