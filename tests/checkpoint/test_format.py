import dataclasses

import pytest

from pflow.checkpoint.format import FORMAT, Header
from pflow.errors import ConfigError, InputError
from pflow.tokens.uncertainty import Curve, UncertaintyCalibration


@pytest.mark.parametrize("calibration", [None, UncertaintyCalibration(energy={"photon": Curve((0.0,), (1.0,))})])
def test_a_header_is_read_back_from_plain_data(header, calibration):
    whole = dataclasses.replace(header, calibration=calibration)
    found = Header.from_dict(whole.to_dict(), file="model.json")
    assert {field.name: getattr(found, field.name) for field in dataclasses.fields(Header)} == {
        field.name: getattr(whole, field.name) for field in dataclasses.fields(Header)
    }


@pytest.mark.parametrize("value", [object(), float("nan")])
def test_a_header_of_anything_but_plain_data_is_an_error(header, value):
    with pytest.raises(ConfigError, match="plain data only"):
        dataclasses.replace(header, provenance={"a": value}).to_dict()


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_with_the_version_that_wrote_it(header, number):
    with pytest.raises(
        InputError, match=rf"model\.json, 'format': expected a header of format {FORMAT}, found {number}, .* 1\.2\.3"
    ):
        Header.from_dict({**header.to_dict(), "format": number}, file="model.json")


@pytest.mark.parametrize("content", [[], None, "text", {}, {"format": 0}, {"format": "one"}])
def test_a_header_without_a_format_is_an_error(content):
    with pytest.raises(InputError, match=r"model\.json, 'format': expected a header of format 2, found"):
        Header.from_dict(content, file="model.json")


@pytest.mark.parametrize("field", ["tokeniser", "model"])
@pytest.mark.parametrize("value", [None, "text", {}])
def test_a_field_that_is_missing_or_of_another_kind_is_named(header, field, value):
    with pytest.raises(InputError, match=rf"model\.json, 'pflow\.{field}': "):
        Header.from_dict({**header.to_dict(), field: value}, file="model.json", prefix="pflow.")


def test_a_calibration_that_cannot_be_is_an_error(header):
    with pytest.raises(InputError, match="'calibration'"):
        Header.from_dict({**header.to_dict(), "calibration": {"mass": {}}}, file="model.json")
