import dataclasses
import functools
import io
import json
import math

import awkward as ak
import numpy as np
import pytest
from rich.console import Console

from pflow.errors import ConfigError
from pflow.event.move import Move
from pflow.io.open import read_events
from pflow.metrics.oracle import ORACLE
from pflow.metrics.report import DEFINITIONS, number_text, pattern_of, short_text
from pflow.metrics.scan import (
    HEADLINES,
    MODEL,
    PARAMETERS,
    REFUSED,
    Limit,
    PointResult,
    ScanPoint,
    ScanResult,
    head_of,
    parse_variations,
    primary_sums,
    scan_points,
    shared_places,
)
from pflow.metrics.stats import Bootstrap, Distribution, rms90_over_mean90
from pflow.physics.detector import load_detector

ILD = {"sample": load_detector("ild_g4")}


def test_values_are_read_and_each_parameter_sets_fields_of_a_move():
    values = parse_variations(["cells=1,2,4", "time=0.03, none", "ecal_threshold=0.001"])
    assert values == {"cells": (1, 2, 4), "time": (0.03, math.inf), "ecal_threshold": (0.001,)}
    assert all(isinstance(value, int) for value in values["cells"])
    fields = {field.name for field in dataclasses.fields(Move)}
    assert {name for parameter in PARAMETERS.values() for name in parameter.fields} == fields - {"scale"}
    assert not REFUSED.keys() & PARAMETERS.keys()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["cell=1,2"], "no parameter of --vary 'cell'.*nearest matches: .*cells"),
        (["cells=1,half"], "expected whole numbers, with commas between them, found 'half'"),
        (["cells=1", "cells=2"], "given twice"),
        (["radius=1500"], "simulate the other detector"),
        (["scale=1.1"], "null test"),
        (["digital=1"], "calibration by the whole sample"),
    ],
)
def test_what_cannot_be_varied_is_refused_with_the_reason(texts, message):
    with pytest.raises(ConfigError, match=message):
        parse_variations(texts)


def test_points_of_one_parameter_of_a_grid_and_of_each_sample():
    points = scan_points(ILD, {"cells": [1, 2, 4], "hcal_layers": [48, 40]})
    assert [point.name for point in points] == ["nominal", "cells=2", "cells=4", "hcal_layers=40", "null test"]
    assert points[0].values == points[-1].values == {"cells": 1, "hcal_layers": 48}
    assert points[3].move == Move(hcal_layers=40)
    assert points[3].values == {"cells": 1, "hcal_layers": 40}
    points = scan_points(ILD, {"cells": [1, 2], "layers": [1, 2]}, grid=True, null_scale=None, tuned=True)
    assert [point.name for point in points] == ["nominal", "layers=2", "cells=2", "cells=2 layers=2", "tuned model"]
    assert points[3].move == Move(ecal_cells=2, hcal_cells=2, layers=2)
    other = dataclasses.replace(ILD["sample"], b_field=3.0)
    points = scan_points({**ILD, "small": other}, {"cells": [2]}, null_scale=None)
    assert [point.name for point in points] == ["nominal", "cells=2", "small", "small cells=2"]
    assert [point.kind for point in points] == ["nominal", "point", "point", "point"]
    assert len({point.file_name for point in points}) == len(points)
    # Not the numbers of a file called so in place of those of the point.
    for names in (["small", "cells=2"], ["small", "a b", "a_b"]):
        with pytest.raises(ConfigError, match=r"points '(cells=2|a b)' of .* have one file, .*json: rename a file"):
            scan_points(dict.fromkeys(names, other), {"cells": [2]})


def test_points_that_are_not_exact_or_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="no multiple of 4"):
        scan_points(ILD, {"layers": [1, 4]})
    with pytest.raises(ConfigError, match=r"of its layers every 2\. or 3\. or 5\. or 6\. or 10\. or 15\. or 30\. can"):
        scan_points(ILD, {"layers": [4]})
    with pytest.raises(ConfigError, match=r"^--vary cells=0: ecal_cells must be a whole number of at least 1"):
        scan_points(ILD, {"cells": [0, 2]})
    steps = {"cells": [2], "ecal_cells": [3]}
    assert [point.name for point in scan_points(ILD, steps)] == ["nominal", "cells=2", "ecal_cells=3", "null test"]
    with pytest.raises(ConfigError, match="--vary cells and --vary ecal_cells both set ecal_cells"):
        scan_points(ILD, steps, grid=True)


def test_headlines_are_keys_of_an_evaluation():
    assert all(pattern_of(key.replace("*", "91"), DEFINITIONS) for key in HEADLINES)
    assert head_of("jet_energy.91.resolution") == "jets, 91 GeV"
    assert head_of("jet_energy.91.binned.resolution") == head_of("class.photon.fake_rate") == ""
    jets, energy = "jet_energy.91.resolution", "event.visible_energy.rms90_over_mean90"
    numbers = scanned().nominal.algorithms[MODEL]["fake_energy_fraction"]
    for keys, shown in (((energy, jets), [jets]), ((energy,), [energy])):
        point = dataclasses.replace(scanned().nominal, algorithms={MODEL: dict.fromkeys(keys, numbers)})
        assert dataclasses.replace(scanned(), points=[point]).headlines == shown


def test_events_with_the_same_primaries_are_found_in_any_order(sample_dir):
    events = read_events(sample_dir / "zqq_test_small.root")  # at rest
    sums = primary_sums(events)
    others = events[[4, 2, 2, 5]]
    # Of the generator alone, as what the simulation makes differs between detectors.
    others = dataclasses.replace(others.without_truth(), truth=_in_double(others.truth[others.truth.status == 1]))
    changed = 1.001 * sums[:1]
    # The same event twice has no place of its own.
    found = shared_places(sums, np.concatenate([primary_sums(others), changed]))
    np.testing.assert_array_equal(found, [4, -1, -1, 5, -1])
    np.testing.assert_array_equal(shared_places(np.concatenate([sums, sums[:1]]), sums), [-1, *range(1, len(sums))])


def _in_double(truth):
    px = ak.values_astype(truth.px, np.float64)
    return ak.with_field(truth, px * (1 + 1e-6 * np.sign(px)), "px")


def measured(response, places, *, key="event.visible_energy.rms90_over_mean90", **facts) -> PointResult:
    bootstrap = Bootstrap(places)
    number = Distribution(response, np.arange(len(response)), bootstrap).number(rms90_over_mean90)
    given = {"point": ScanPoint(name="nominal", kind="nominal", sample="s"), "places": places} | facts
    return PointResult(
        algorithms={MODEL: {key: number}},
        titles={MODEL: MODEL},
        hits=10.0,
        tokens=5.0,
        **given,
    )


def other_point(name="cells=2", **facts) -> ScanPoint:
    return ScanPoint(name=name, sample="s", **facts)


def test_intervals_of_ratios_cover_paired_or_not():
    """Of 100 samples of 60 events each, 68.3% hold the ratio of the whole population, within its error.

    The two detectors have most of each event's fluctuation in common, so that pairing is worth a factor.
    """
    generator = np.random.default_rng(5)
    n, size, key = 60_000, 60, "event.visible_energy.rms90_over_mean90"
    common = generator.normal(0, 0.03, n) - 0.1 * (generator.random(n) < 0.05) * generator.exponential(1, n)
    nominal = 1 + common + generator.normal(0, 0.008, n)
    changed = 1 + 1.1 * common + generator.normal(0, 0.01, n)
    true = rms90_over_mean90(np.sort(changed)) / rms90_over_mean90(np.sort(nominal))
    covered, lengths = {"same": 0, "others": 0}, {"same": 0.0, "others": 0.0}
    for start in range(0, 100 * size, size):
        rows, places = slice(start, start + size), np.arange(size)
        far = slice(n // 2 + start, n // 2 + start + size)
        first = measured(nominal[rows], places)
        points = {
            "same": measured(changed[rows], places, point=other_point()),
            "others": measured(changed[far], places + size, point=other_point()),
        }
        result = ScanResult(points=[first, *points.values()], labels={"cells": "cells"})
        for name, point in points.items():
            # As it is stored: to six digits.
            stored = PointResult.of_plain(point.point, json.loads(json.dumps(point.to_plain())), [])
            change = result.change(stored, key)
            covered[name] += change.low <= true <= change.high
            lengths[name] += change.high - change.low
    assert 55 <= covered["same"] <= 82
    assert 55 <= covered["others"] <= 82
    assert lengths["others"] > 2 * lengths["same"]


@functools.cache
def scanned(width=1.02) -> ScanResult:
    """Three points, and a null test in which the spread is `width` times as large."""
    generator, key = np.random.default_rng(1), "fake_energy_fraction"
    response, places = 1 + generator.normal(0, 0.03, 200), np.arange(200)
    null_point = ScanPoint(name="null test", kind="null test", sample="s", move=Move(scale=1.25))
    limits = (Limit("merged", "cells of 5 and 10 mm are merged to 20 mm"), Limit("outside", "outside it is"))
    points = [
        measured(response, places, key=key),
        measured(1 + 1.005 * (response - 1), places, key=key, point=other_point(), limits=limits),
        measured(1 + 1.5 * (response - 1), places, key=key, point=other_point("cells=4")),
        measured(1 + width * (response - 1), places, key=key, point=null_point),
    ]
    return ScanResult(points=points, labels={"cells": "cells"}, provenance={"inputs": []})


def test_the_null_test_passes_or_names_and_marks_what_fails():
    result = scanned()
    assert result.marks(result["cells=2"], "fake_energy_fraction") == ["merged", "outside", "null test"]
    assert result.marks(result["cells=4"], "fake_energy_fraction") == []
    assert result.marks(result["cells=2"], "class.photon.response_median")[:1] == ["outside"]
    assert result.marks(result["cells=2"], "photon_pairs.opening_response")[:1] == ["merged"]
    # Widths of jets have confusion in them; photons need no HCAL; a ratio is of the nominal detector, too.
    of_hcal = dataclasses.replace(result["cells=4"], limits=(Limit("merged", "cells of the HCAL", "hcal"),))
    for key, marks in (("jet_energy.91.resolution", ["merged"]), ("class.photon.efficiency", [])):
        assert result.marks(of_hcal, key)[:1] == marks
    far = dataclasses.replace(result.nominal, limits=result["cells=2"].limits[1:])
    other = dataclasses.replace(result, points=[far, *result.points[1:]])
    assert other.marks(other["cells=4"], "fake_energy_fraction") == ["outside"]
    # A null test that gives 1 by luck, here the same values in other events, still has an error.
    response = np.roll(1 + np.random.default_rng(1).normal(0, 0.03, 200), 1)
    luck = measured(response, np.arange(200), key="fake_energy_fraction", point=result["null test"].point)
    lucky = dataclasses.replace(result, points=[*result.points[:-1], luck])
    assert lucky.deviation(luck, "fake_energy_fraction") == 0
    assert lucky.marks(result["cells=2"], "fake_energy_fraction")[-1] == "null test"
    assert lucky.marks(result["cells=4"], "fake_energy_fraction") == []
    assert any("cells=2: cells of 5 and 10 mm" in text for text in result.sentences)
    # Spreads of 0.034 and 0.036 are 2.1 and 2.6 errors away from that of the nominal point.
    for spread, failed, said in ((0.034, [], "Null test passed: "), (0.036, ["fake_energy_fraction"], "not passed")):
        noisy = 1 + np.random.default_rng(2).normal(0, spread, 200)
        wide = measured(noisy, np.arange(200), key="fake_energy_fraction", point=result["null test"].point)
        other = dataclasses.replace(result, points=[*result.points[:-1], wide])
        assert list(other.failed) == failed
        assert said in other.verdict
        assert ("(!)" in other.verdict) == bool(failed)


def test_the_table_and_the_file_have_all_points():
    result = scanned()
    heads, sections = result.cells()
    assert [row[0] for row in sections[0]] == ["PFlow, nominal", "PFlow, cells=2", "PFlow, cells=4", "PFlow, null test"]
    assert heads == ["point", "hits", "tokens", "fake energy", "limits"]
    assert sections[0][1][-2].endswith("~")
    assert sections[0][1][-1] == "merged, outside"
    lines = result.csv().splitlines()
    assert len(lines) == 1 + len(result.points)
    ratio = float(lines[3].split(",")[lines[0].split(",").index("change")])
    assert ratio == pytest.approx(1.5, rel=0.01)
    assert json.dumps(result.document(), allow_nan=False)
    assert "cells=4" in result._repr_html_()
    with pytest.raises(KeyError, match="nearest matches: cells=4, cells=2"):
        result["cells=3"]
    with pytest.raises(KeyError, match=r"no point has 'fake_energy' \(nearest matches: fake_energy_fraction"):
        result.change(result["cells=2"], "fake_energy")
    with pytest.raises(ConfigError, match="no algorithm of the scan 'pandora': expected one of PFlow"):
        result.change(result["cells=2"], "fake_energy_fraction", "pandora")


def printed(result: ScanResult, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(*result.tables(width), sep="\n")
    return console.export_text()


@pytest.mark.parametrize("width", [60, 220])
def test_numbers_of_a_narrow_table_stay_whole(width):
    text = printed(scanned(), width)
    change = scanned().change(scanned()["cells=4"], "fake_energy_fraction")
    expected = number_text(change)
    assert (expected if width == 220 else short_text(expected)) in text
    assert (" 10 " in text) == ("tokens" in text) == (width == 220)  # hits
    assert "…" not in text


def test_long_names_of_algorithms_leave_the_numbers_of_80_columns_whole():
    first, *others = scanned().points
    named = {"titles": {MODEL: "PFlow", ORACLE: "oracle (energies as in the file)"}}
    numbers = {"algorithms": first.algorithms | {ORACLE: first.algorithms[MODEL]}}
    result = dataclasses.replace(scanned(), points=[dataclasses.replace(first, **named, **numbers), *others])
    assert result.algorithms[ORACLE] == "oracle (energies as in the file)"
    other = dataclasses.replace(others[0], titles={MODEL: "PFlow", ORACLE: "oracle"})
    assert dataclasses.replace(result, points=[result.points[0], other]).algorithms[ORACLE].endswith("file) and oracle")
    text = printed(result, 80)
    assert "…" not in text
    assert number_text(first.algorithms[MODEL]["fake_energy_fraction"]).partition(" ")[0] in text
    assert max(map(len, text.splitlines())) <= 80


def test_events_of_other_samples_are_said():
    result = scanned()
    fewer = dataclasses.replace(result["cells=4"], places=np.arange(180, 200))
    other = dataclasses.replace(result, points=[*result.points[:2], fewer, result.points[3]])
    text = "Partly or not paired, and ratios of other events, too: nominal has 200, cells=4 20 (20 are the"
    assert text in other.sentences[-1]
    assert [row["paired"] for row in other.rows()] == ["1", "1", "0.1", "1"]
    assert len(other.caveats) == 2  # and it has few events


def test_oracles_with_and_without_a_fit_are_not_compared():
    """Nor the model's confusion, which is measured by them."""
    fakes, confusion = "fake_energy_fraction", "confusion_budget.confusion"
    numbers = dict.fromkeys((fakes, confusion), scanned().nominal.algorithms[MODEL][fakes])
    titles = ("oracle", "oracle (energies as in the file)", "oracle", "oracle")
    points = [
        dataclasses.replace(of, algorithms={MODEL: numbers, ORACLE: numbers}, titles={MODEL: MODEL, ORACLE: title})
        for of, title in zip(scanned().points, titles, strict=True)
    ]
    result = dataclasses.replace(scanned(), points=points)
    for name, compared in (("cells=2", [True, False, False]), ("cells=4", [True, True, True])):
        asked = ((fakes, MODEL), (confusion, MODEL), (fakes, ORACLE))
        assert [math.isfinite(result.change(result[name], *of).value) for of in asked] == compared
    # Ratios to the model's are of the nominal point, and a change of confusion is a difference.
    assert {(row["point"], row["algorithm"] == MODEL) for row in result.rows() if row["to_model"]} == {
        ("nominal", False)
    }
    assert result.deviation(result["cells=4"], confusion) == abs(result.change(result["cells=4"], confusion).value)


def test_few_events_and_tracks_from_particles_are_said():
    points = [dataclasses.replace(of, places=of.places[:1]) for of in scanned().points]
    few = dataclasses.replace(scanned(), points=points, provenance={"inputs": [{"truth_tracks": True}]})
    assert few.sentences[-1] == "Errors from fewer than 30 events are too small."
    assert str(few.tables(220)[0].title).startswith("1 event, tracks from Monte Carlo particles; first row")
    assert not scanned().caveats
    assert scanned().events == "200 events"
