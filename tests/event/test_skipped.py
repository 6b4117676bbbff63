import numpy as np
import pytest

from pflow.errors import InputError
from pflow.event.events import Flag
from pflow.event.skipped import BadEntriesWarning, without_refused


def fewer_than(limit: int):
    """Counts the hits of events; refuses those with as many as the limit or more."""

    def attempt(events):
        counts = np.array([len(hits) for hits in events.hits])
        for entry, count in zip(events.entry, counts, strict=True):
            if count >= limit:
                raise InputError("too many", entry=int(entry))
        return counts

    return attempt


def test_refused_events_are_emptied_in_their_place_and_flagged(make_photons):
    message = "^2 of 5 entries cannot be used and were left empty; the first: entry 3: too many$"
    with pytest.warns(BadEntriesWarning, match=message):
        counts, rest = without_refused(make_photons(5), fewer_than(5))
    assert counts.tolist() == [2, 3, 4, 0, 0]
    assert ((rest.flags & Flag.BAD_INPUT) > 0).tolist() == [False, False, False, True, True]
    with pytest.raises(InputError, match="entry 3: too many"):
        without_refused(make_photons(5), fewer_than(5), on_error="raise")


def test_an_error_of_no_entry_among_others_is_raised(make_photons):
    def attempt(events):
        raise InputError("refused", entry=0 if len(events) > 1 else None)

    with pytest.raises(InputError, match="refused"):
        without_refused(make_photons(5), attempt)
