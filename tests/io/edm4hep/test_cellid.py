import numpy as np
import pytest

from pflow.io.edm4hep.cellid import bit_field, find_layer_bits, layer_from_cell_id

CLD = "system:0:5,side:5:2,module:7:8,stave:15:4,layer:19:9,submodule:28:4,x:32:-16,y:48:-16"


@pytest.mark.parametrize(
    ("encoding", "field"),
    [
        (CLD, (19, 9, False)),
        ("system:5,side:-2,layer:6,module:11", (7, 6, False)),
        ("system:8:4,layer:6", (12, 6, False)),
    ],
    ids=["with offsets", "without", "without after one with"],
)
def test_a_field_is_where_the_encoding_says(encoding, field):
    assert bit_field(encoding, "layer") == field


def test_what_is_not_an_encoding_is_refused():
    for encoding in ("", ":4", "layer", *(f"layer:{bits}" for bits in ("x", "1:2:3", "0", "60:8", "-1:4"))):
        with pytest.raises(ValueError, match="is not name:offset:width or name:width within 64 bits"):
            bit_field(encoding, "layer")


def test_the_layer_is_read_from_among_other_fields():
    layers = np.array([0, 39, 511], dtype=np.uint64)
    cells = (layers << np.uint64(19)) | np.uint64(0xFFFF_FFFF_F007_FFFF)
    np.testing.assert_array_equal(layer_from_cell_id(cells, CLD), [0, 39, 511])


def test_a_signed_layer_may_be_negative():
    cells = np.array([0b1111, 0b1000, 0b0111], dtype=np.uint64)
    np.testing.assert_array_equal(layer_from_cell_id(cells, "layer:0:-4"), [-1, -8, 7])


@pytest.mark.parametrize("encoding", [None, "system:8,x:8"])
def test_without_a_layer_it_is_unknown(encoding):
    np.testing.assert_array_equal(layer_from_cell_id(np.array([5], dtype=np.uint64), encoding), [-1])


@pytest.mark.parametrize(("offset", "width"), [(0, 8), (19, 9), (40, 8)])
def test_the_bits_of_the_layer_are_found_by_the_layers(offset, width):
    rng = np.random.default_rng(offset)
    layer = rng.integers(0, 40, 500)
    cells = layer.astype(np.uint64) << np.uint64(offset)
    cells |= rng.integers(0, 2**12, 500).astype(np.uint64) << np.uint64(offset + width)
    if offset:
        cells |= rng.integers(0, 2**offset, 500).astype(np.uint64)
    bits = find_layer_bits(cells, layer)
    assert bits is not None
    assert layer_from_cell_id(cells, f"layer:{bits[0]}:{bits[1]}").tolist() == layer.tolist()
    assert (bits[0], bits[1]) == (offset, 8)


def test_bits_that_do_not_follow_the_layers_are_rejected():
    rng = np.random.default_rng(0)
    assert find_layer_bits(rng.integers(0, 2**40, 300).astype(np.uint64), rng.integers(0, 20, 300)) is None
    assert find_layer_bits(np.arange(3, dtype=np.uint64), np.arange(3)) is None
    assert find_layer_bits(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=int)) is None
