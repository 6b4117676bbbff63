import math

import pytest
import torch

from pflow.model.common.directions import tangent_basis, unit_vector


@pytest.mark.parametrize(
    ("theta", "phi", "expected"),
    [(0.0, 0.7, [0, 0, 1]), (math.pi / 2, math.pi / 2, [0, 1, 0]), (math.pi / 2, 2 * math.pi, [1, 0, 0])],
)
def test_unit_vector(theta, phi, expected):
    vector = unit_vector(torch.tensor(theta), torch.tensor(phi))
    torch.testing.assert_close(vector, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)


def test_the_tangent_basis_is_that_of_spherical_coordinates():
    theta, phi = 0.7, -2.1
    direction = torch.tensor(
        [math.sin(theta) * math.cos(phi), math.sin(theta) * math.sin(phi), math.cos(theta)], dtype=torch.float64
    )
    e_theta, e_phi = tangent_basis(direction)
    expected = [math.cos(theta) * math.cos(phi), math.cos(theta) * math.sin(phi), -math.sin(theta)]
    torch.testing.assert_close(e_theta, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(e_phi, torch.tensor([-math.sin(phi), math.cos(phi), 0.0], dtype=torch.float64))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_on_the_z_axis_the_tangent_basis_is_x_and_y(sign):
    e_theta, e_phi = tangent_basis(torch.tensor([0.0, 0.0, sign]))
    assert e_phi.tolist() == [0.0, 1.0, 0.0]
    assert e_theta.tolist() == [sign, 0.0, 0.0]
