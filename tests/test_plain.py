from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest

from pflow.errors import ConfigError
from pflow.plain import from_plain, to_plain


@dataclasses.dataclass(frozen=True)
class Inner:
    size: float
    name: str = "one"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    parts: Mapping[str, Inner] = dataclasses.field(default_factory=dict)
    several: tuple[Inner, ...] = ()
    numbers: tuple[int, ...] = ()
    maybe: float | None = None
    yes: bool = False


FULL = Outer(
    inner=Inner(1.5), parts={"a": Inner(2.0, "two")}, several=(Inner(0.0),), numbers=(1, 2), maybe=0.5, yes=True
)


@pytest.mark.parametrize("value", [FULL, Outer(inner=Inner(1.0))])
def test_an_equal_value_comes_back(value):
    assert from_plain(Outer, json.loads(json.dumps(to_plain(value))), where="it") == value


def test_a_value_is_taken_as_it_is():
    assert from_plain(Outer, FULL, where="it") is FULL


def test_a_whole_number_is_a_number():
    assert isinstance(from_plain(Inner, {"size": 1}, where="it").size, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iner": 1}, r"it: unknown field 'iner'.*inner"),
        ({"inner": {}}, r"it: inner: field 'size' is missing"),
        ({"inner": 3}, r"it: inner: expected a mapping, found int"),
        ({"inner": {"size": "1"}}, r"it: inner: 'size' must be a number, found '1'"),
        ({"inner": {"size": 10**400}}, r"'size' must be a number up to 1.8e308"),
        ({"inner": {"size": True}}, r"'size' must be a number"),
        ({"numbers": [1, 10**200]}, r"'numbers\[1\]' must be a whole number up to 9223372036854775807"),
        ({"inner": {"size": 1.0, "name": 2}}, r"'name' must be text"),
        ({"parts": [1]}, r"'parts' must be a mapping"),
        ({"parts": {"a": {"size": None}}}, r"it: parts\['a'\]: 'size' must be a number"),
        ({"several": [{"size": 1}, {}]}, r"it: several\[1\]: field 'size' is missing"),
        ({"numbers": "12"}, r"'numbers' must be a list"),
        ({"numbers": [1, 2.0]}, r"'numbers\[1\]' must be a whole number"),
        ({"maybe": "x"}, r"'maybe' must be a number"),
        ({"yes": 1}, r"'yes' must be true or false"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        from_plain(Outer, to_plain(FULL) | change, where="it")
