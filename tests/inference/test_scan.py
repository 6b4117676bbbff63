import copy
import dataclasses
import json
import re
import shutil
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pflow.checkpoint import load_model
from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import BadEntriesWarning, ImplausibleWarning
from pflow.event.move import Move
from pflow.inference import scan as module
from pflow.inference.scan import scan
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.metrics.evaluation import evaluate
from pflow.metrics.oracle import ORACLE
from pflow.metrics.report import REFERENCE
from pflow.metrics.scan import MODEL, ScanPoint
from pflow.metrics.stats import leaves, ratio
from pflow.physics.detector import load_detector
from pflow.tokens.particles import Calibration

pytestmark = pytest.mark.usefixtures("few_resamples")

N = 5
KEY = "event.visible_energy.response_median"


@pytest.fixture
def options(model):
    """Of a scan of a few events by a small model with random weights."""
    return {"checkpoint": model, "entries": N, "oracle": False, "null_test": False, "device": "cpu"}


@pytest.fixture(scope="module")
def sample(sample_dir):
    return sample_dir / "multi_test_small.root"


@pytest.fixture
def no_figures(monkeypatch):
    """`tests/plots` draws them."""
    monkeypatch.setattr("pflow.plots.report.scan_figures", lambda _: {})


def values(result, name):
    return {key: number.value for key, number in result[name].algorithms[MODEL].items()}


def test_a_point_is_the_evaluation_of_moved_events_in_chunks(sample, model, options):
    result = scan(sample, vary={"cells": [1, 2], "layers": [2]}, chunk_size=2, **options)
    events = read_events(sample, entry_stop=N)
    moves = {"nominal": Move(), "cells=2": Move(ecal_cells=2, hcal_cells=2), "layers=2": Move(layers=2)}
    for name, move in moves.items():
        moved = move.apply(events)
        trained_on = dataclasses.replace(moved, detector=model.tokeniser.detector)  # the model knows this one alone
        reco = model.reconstruct(trained_on)
        expected = dict(leaves(evaluate(reco, moved, oracle=False).algorithms[MODEL]))
        found = values(result, name)
        assert found == pytest.approx({key: expected[key].value for key in found}, rel=1e-5)
        assert result[name].algorithms[MODEL][KEY].low == pytest.approx(expected[KEY].low, rel=1e-5)
    assert REFERENCE in result["nominal"].algorithms
    assert REFERENCE not in result["cells=2"].algorithms  # it saw the events as simulated
    assert result["cells=2"].hits < result["nominal"].hits
    assert [limit.kind for limit in result["cells=2"].limits] == ["outside"]


def test_photons_that_leave_too_little_in_a_coarser_detector_are_lost(sample, options):
    """With a threshold of 0.2 GeV some have no hits, and are particles to find all the same: for the oracle, too."""
    result = scan(sample, vary={"ecal_threshold": [0.2]}, **options | {"oracle": True})
    found = [point.algorithms[ORACLE]["class.photon.efficiency_loose"].value for point in result.points]
    assert found[0] == 1.0
    assert found[1] < 0.9
    assert result.labels["ecal_threshold"].endswith("0: the sample's")


def test_a_reference_that_some_files_lack_is_left_out(sample, options, tmp_path):
    """Its ratio to the model would be of other events."""
    events = read_events(sample, entry_stop=2 * N)
    write_events(tmp_path / "a.root", events[:N])
    write_events(tmp_path / "b.root", dataclasses.replace(events[N:], reference=None))
    with pytest.warns(ImplausibleWarning, match=f"nominal: .* has particles in {N} of {2 * N} events, and is left out"):
        result = scan(tmp_path / "*.root", vary={"cells": [2]}, **options)
    assert list(result.algorithms) == [MODEL]


def test_pairs_of_photons_are_counted_for_each_algorithm(sample_dir, model, options, tmp_path, no_figures):
    file = sample_dir / "gammasep_test_small.root"
    result = scan(file, vary={"cells": [2]}, output=tmp_path, **options)
    nominal = result.nominal.pairs
    assert nominal.keys() == {MODEL, REFERENCE}
    assert result["cells=2"].pairs.keys() == {MODEL}
    events = read_events(file, entry_stop=N)
    expected = evaluate(model.reconstruct(events), events, oracle=False).algorithms
    for name, of in nominal.items():
        counted = expected[name]["count"]["two_photons_found"]
        assert of["n_events"] == counted["n_events"]
        np.testing.assert_array_equal(of["value"], counted["efficiency"].value)
    document = json.loads((tmp_path / "scan.json").read_text(encoding="utf-8"))
    assert document["points"][0]["two_photons_found"].keys() == nominal.keys()


def test_what_is_wrong_with_a_point_is_said_once_with_its_name(sample, options, tmp_path):
    """Energies of hits in MeV, and particles of 30 times the energy of what they are made of."""
    events = read_events(sample, entry_stop=N)
    hits = jagged.replaced(events.hits, {"energy": 1000 * jagged.flat(events.hits.energy)})
    write_events(tmp_path / "mev.root", dataclasses.replace(events, hits=hits))
    with pytest.warns(ImplausibleWarning) as caught:
        scan(tmp_path / "mev.root", vary={"cells": [2]}, **options)
    said = [str(warning.message) for warning in caught if warning.category is ImplausibleWarning]
    assert [text.partition(":")[0] for text in said] == ["nominal", "cells=2"]
    assert "times the energy of stable particles" in said[0]
    assert all(re.search("particles have 0.* times the energy of hits or tracks", text) for text in said)


def test_layers_are_not_left_out_by_wrong_numbers(sample, options, tmp_path):
    events = read_events(sample, entry_stop=N)
    events = dataclasses.replace(
        events, hits=jagged.replaced(events.hits, {"layer": jagged.flat(events.hits.layer) // 2})
    )
    write_events(tmp_path / "half.root", events)
    message = r"have the layer of their depth: .*; no layers can be left out by such numbers"
    for vary in ({"layers": [2]}, {"hcal_layers": [24]}):
        with patch.object(module, "_measured") as measured, pytest.raises(InputError, match=message):
            scan([sample, tmp_path / "half.root"], vary=vary, **options)
        measured.assert_not_called()


def test_a_figure_that_is_in_the_way_is_said_before_any_work(sample, options, tmp_path):
    (tmp_path / "mine.png").touch()
    with patch.object(module, "_measured") as measured, pytest.raises(ConfigError, match=r"holds mine\.png, and"):
        scan(sample, vary={"cells": [2]}, output=tmp_path, **options)
    measured.assert_not_called()


@pytest.mark.filterwarnings("ignore::pflow.event.events.BadEntriesWarning")
def test_events_that_are_left_out_count_nowhere_and_are_said(sample, options, tmp_path, no_figures, spoil):
    """One has a particle that is its own ancestor; two have too many hits, until cells are merged."""
    events = spoil(read_events(sample, entry_stop=N), 0, "truth.parent", 0)
    write_events(tmp_path / "loop.root", events)
    given = {"vary": {"cells": [2]}, "max_hits": 640, "output": tmp_path / "scan", "chunk_size": 2, **options}
    with patch.object(module, "measure", wraps=module.measure) as measured:
        result = scan(tmp_path / "loop.root", on_error="skip", **given)
    # Particles of events without any would be compared with all hits.
    assert sum(len(call.args[0]) for call in measured.call_args_list) == 2
    assert [(p.events, result.n_shared(p)) for p in result.points] == [("2 of 5", 2), ("4 of 5", 2)]
    merged = Move(ecal_cells=2, hcal_cells=2).apply(events)
    # Of all chunks.
    counts = [jagged.count(of.hits)[1:] for of in (events, merged)]
    assert [point.hits for point in result.points] == [of[of <= 640].mean() for of in counts]
    assert result.sentences[-1].endswith("of other events, too: nominal has 2 of 5, cells=2 4 of 5 (2 are the same).")
    row = next(row for row in result.rows() if row["point"] == "cells=2")
    assert (row["events"], row["paired"]) == (4, "0.5")
    with pytest.warns(BadEntriesWarning, match=r"nominal\.json: 3 of 5 entries could not be used"):
        again = scan(tmp_path / "loop.root", on_error="skip", force=True, **given)
    assert again.sentences == result.sentences
    with pytest.raises(InputError, match=r"loop\.root, entry 0, 'truth\.parent': a particle is its own ancestor"):
        scan(tmp_path / "loop.root", force=True, **given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vary": {"cells": 2}}, "vary: expected values by parameter"),
        ({"vary": "cells=2"}, "vary: expected values by parameter"),
        ({"entries": 0}, "entries: expected a number of at least 1, found 0"),
        ({"files": []}, "no files are given"),
    ],
)
def test_what_cannot_be_scanned_is_refused_by_name(sample, changes, said):
    with pytest.raises((TypeError, ConfigError, InputError), match=said):
        scan(**{"files": sample, "vary": {"cells": [2]}, **changes})


def test_the_oracle_keeps_particles_below_the_smallest_energy(sample, options):
    result = scan(sample, vary={"cells": [2]}, e_min=10.0, **options | {"oracle": True})
    assert result.nominal.algorithms[ORACLE][KEY].value == pytest.approx(1.0, abs=0.01)  # without them 0.97
    assert any("right particles below 10 GeV" in note for note in result.notes)


def test_finished_points_are_kept_and_those_made_otherwise_refused(sample, model, options, tmp_path, no_figures):
    steps, out, shown = {"cells": [2]}, tmp_path / "scan", []
    noted = {**options, "output": out, "on_progress": lambda name, *_: shown.append(name)}
    first = scan(sample, vary=steps, **noted)
    assert set(shown) == {"nominal", "cells=2"}
    with pytest.raises(ConfigError, match=r"scan\.csv: a file is there"):
        scan(sample, vary=steps, **noted)
    shown.clear()
    second = scan(sample, vary={**steps, "layers": [2]}, force=True, **noted)
    assert set(shown) == {"layers=2"}
    assert values(first, "cells=2") == pytest.approx(values(second, "cells=2"))
    change = [result.change(result["cells=2"], KEY) for result in (first, second)]
    assert change[0].low == pytest.approx(change[1].low, rel=1e-4, nan_ok=True)
    for path in out.glob("*.*"):
        path.unlink()
    edited = {"detector": dataclasses.replace(load_detector("ild_g4"), description="edited")}
    calibrated = {"checkpoint": dataclasses.replace(model, calibration=Calibration())}
    for other, setting in (
        ({"entries": N - 1}, r"entries \[5, 5\] there and \[4, 4\] here; .*--force"),
        (edited, "input's description"),
        (calibrated, "calibration"),
    ):
        with pytest.raises(ConfigError, match=rf"nominal\.json was made with other settings: {setting}"):
            scan(sample, vary=steps, **noted | other)
    (out / "points" / "cells_2.json").write_text('{"schema"')
    with pytest.raises(
        ConfigError, match=r"cells_2\.json is damaged, or of another layout: delete it, or replace it with --force"
    ):
        scan(sample, vary=steps, **noted)
    (out / "report.html").write_text('<title>pflow scan</title><figure id="of_another_sample">')
    (out / "of_another_sample.png").write_bytes(b"")
    result = scan(sample, vary=steps, force=True, **noted | {"entries": N - 1})
    assert not (out / "of_another_sample.png").exists()
    assert result.nominal.n_events == N - 1
    assert len(json.loads((out / "points" / "cells_2.json").read_text())["numbers"]["places"]) == N - 1


def test_an_interrupted_scan_keeps_the_points_that_are_complete(sample, options, tmp_path, no_figures):
    measured = module._measured

    def interrupted(tasks, *arguments, **named):
        yield next(measured(tasks[:1], *arguments, **named))
        raise KeyboardInterrupt

    with patch.object(module, "_measured", interrupted), pytest.raises(KeyboardInterrupt):
        scan(sample, vary={"cells": [2]}, output=tmp_path, **options)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["nominal.json"]
    shown: list[str] = []
    scan(sample, vary={"cells": [2]}, output=tmp_path, on_progress=lambda name, *_: shown.append(name), **options)
    assert set(shown) == {"cells=2"}


def test_samples_with_the_same_primaries_are_paired(sample, options, tmp_path):
    """The second file has some of the events in another order, and is of a detector with a weaker field."""
    events = read_events(sample, entry_stop=N)
    write_events(tmp_path / "weak.root", events[[3, 1, 0, 4]])
    weak = dataclasses.replace(load_detector("ild_g4"), name="weak", b_field=3.0)
    files = [sample, tmp_path / "weak.root"]
    result = scan(files, detector=["ild_g4", weak], **options)
    assert [point.point.name for point in result.points] == ["nominal", "weak"]
    assert result.n_shared(result["weak"]) == result["weak"].n_events == 4
    assert result.labels == {"field [T]": "Field [T]"}
    assert result["weak"].point.values == {"field [T]": 3.0}


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")  # hits and tracks are at another radius
def test_each_measure_in_which_detectors_differ_is_a_parameter(sample, options, tmp_path):
    """As in a study of radius and field at fixed material; a detector that differs in both has only a number."""
    ild, radius = load_detector("ild_g4"), 2000.0
    barrel = tuple(
        dataclasses.replace(c, inner_radius=c.inner_radius and c.inner_radius + 195) for c in ild.calorimeters
    )
    large = {"ecal_inner_radius": radius, "hcal_inner_radius": 2255.0, "calorimeters": barrel}
    large |= {"ecal_outer_radius": ild.ecal_outer_radius + 195}
    # Its field is measured, and its radius nominal.
    large["b_field"] = 3.499
    changes = {"ild": {}, "large": large, "weak": {"b_field": 2.0}, "both": {**large, "b_field": 2.0}}
    detectors = {name: dataclasses.replace(ild, name=name, **of) for name, of in changes.items()}
    for name in detectors:
        shutil.copy(sample, tmp_path / f"{name}.root")
    three, options = list(detectors)[:3], {**options, "entries": 2}
    result = scan([tmp_path / f"{name}.root" for name in three], detector=[detectors[n] for n in three], **options)
    values = [tuple(point.point.values.values()) for point in result.points]
    assert list(result.labels.values()) == ["Radius of the ECAL [mm]", "Field [T]"]
    assert values == [(1805.0, 3.5), (radius, 3.5), (1805.0, 2.0)]
    two = [tmp_path / "ild.root", tmp_path / "both.root"]
    assert list(scan(two, detector=[ild, detectors["both"]], **options).labels) == ["detector"]


def test_files_of_one_name_and_of_detectors_of_one_name_are_all_there(sample, options, tmp_path):
    files, detectors = [], []
    for field, name in ((3.5, "a"), (3.0, "a"), (2.5, "a"), (2.0, "nominal")):
        files.append(tmp_path / f"{field}T" / f"{name}.root")
        files[-1].parent.mkdir()
        shutil.copy(sample, files[-1])
        detectors.append(dataclasses.replace(load_detector("ild_g4"), b_field=field))
    result = scan(files, detector=detectors, **{**options, "entries": 2})
    names = ["nominal", "a (ild_g4)", "a (ild_g4 2)", "nominal (ild_g4)"]
    assert [point.point.name for point in result.points] == names
    assert [point.point.values["field [T]"] for point in result.points] == [3.5, 3.0, 2.5, 2.0]


def test_samples_of_other_events_are_not_paired(sample, sample_dir, options):
    files, tokens = [sample, sample_dir / "cld_multi_test_small.root"], ["ild_g4", "cld"]
    result = scan(files, detector=tokens, vary={"cells": [2]}, **options)
    names = [point.point.name for point in result.points]
    assert names == ["nominal", "cells=2", "cld_multi_test_small", "cld_multi_test_small cells=2"]
    assert [result.n_shared(point) for point in result.points] == [N, N, 0, 0]
    assert result.labels["detector"] == "Detector"


def test_a_tuned_model_is_a_point_of_its_own_particles(sample, model, options, save_model, tmp_path, no_figures):
    """The tuned model has other weights: the nominal point alone is measured with both."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in other.reconstructor.parameters():
            weights.add_(0.2 * torch.randn(weights.shape, generator=generator))
    tuned, steps = save_model(other, tmp_path / "tuned.ckpt"), {"vary": {"cells": [2]}, "output": tmp_path / "scan"}
    result = scan(sample, tuned=tuned, **steps, **options)
    assert [point.point.name for point in result.points] == ["nominal", "cells=2", "tuned model"]
    events = read_events(sample, entry_stop=N)
    numbers = {}
    for name, of in (("nominal", model), ("tuned model", other)):
        expected = evaluate(of.reconstruct(events), events, oracle=False).algorithms[MODEL]
        numbers[name] = expected["event"]["visible_energy"]["response_median"].value
        assert values(result, name)[KEY] == numbers[name]
    change = result.change(result["tuned model"], KEY)
    assert change.value == numbers["tuned model"] / numbers["nominal"] != 1.0
    assert any("Row 'tuned model'" in note for note in result.notes)
    # Another tuned model changes this point alone.
    for path in (tmp_path / "scan").glob("*.*"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"tuned_model\.json was made with other settings: checkpoint"):
        scan(sample, tuned=save_model(model, tmp_path / "other.ckpt"), **steps, **options)


def test_general_says_what_limits_it(sample):
    result = scan(sample, vary={"cells": [1, 2, 4], "layers": [2]}, entries=2, device="cpu")
    kinds = {point.point.name: {limit.kind for limit in point.limits} for point in result.points}
    assert kinds == {
        "nominal": set(),
        "cells=2": {"merged"},
        "cells=4": {"outside", "merged"},  # 20 and 120 mm, of which 30 and 90 mm of the HCAL look alike
        "layers=2": {"merged"},
        "null test": set(),
    }
    assert "5 mm (ECAL), 90 mm (HCAL) and 8 radiation lengths" in result.notes[0]  # the smallest cells of all points
    assert {MODEL, ORACLE, REFERENCE} == result.nominal.algorithms.keys()
    assert result["cells=4"].tokens < 0.8 * result.nominal.tokens
    assert result.verdict.startswith("Null test ")
    ild = load_detector("ild_g4")
    point = ScanPoint(name="half", sample="half")  # a file of another detector, not a move
    limits = module._limits(load_model("general"), Move(layers=2).detector(ild), ild, point)
    assert [(limit.kind, limit.calorimeter) for limit in limits] == [("merged", "ecal"), ("merged", "hcal")]
    drafted = dataclasses.replace(
        ild,
        b_field=3.0,
        calorimeters=[dataclasses.replace(of, cell_size=1.002 * of.cell_size) for of in ild.calorimeters],
    )
    assert not module._limits(load_model("general"), drafted, ild, point)
    # Calibrated for another description of ild_g4: of the nominal one, not of others, which keep its name.
    calibrated = copy.deepcopy(load_model("general"))
    vars(calibrated.tokeniser.sample)["calibrated_for"] = {"cld": None, "ild_g4": "other digits"}
    assert "another description of 'ild_g4'" in module._limits(calibrated, ild, ild, point)[0].text
    assert not module._limits(calibrated, drafted, ild, point)
    # A shorter HCAL may lack the layers of one thickness, but none of its own are others.
    uneven = dataclasses.replace(
        ild,
        calorimeters=[
            dataclasses.replace(of, layers=[*of.layers, dataclasses.replace(of.layers[0], interaction_lengths=0.2)])
            if of.kind == "hcal"
            else of
            for of in ild.calorimeters
        ],
    )
    short = ScanPoint(name="short", sample="s", move=Move(hcal_layers=40))
    assert all(limit.kind == "outside" for limit in module._limits(load_model("general"), uneven, uneven, short))


@pytest.mark.parametrize(("size", "layers", "scale"), [(1.0, 48, 1.25), (1.35, 24, 0.8), (0.6, 48, 1.25)])
def test_the_null_test_stays_inside_of_the_training(size, layers, scale):
    """Where it can: 24 layers of the HCAL are outside at any scale."""
    detector = Move(scale=size, hcal_layers=layers).detector(load_detector("ild_g4"))
    assert module._null_scale(load_model("general"), detector) == scale


def test_a_model_of_several_sizes_sees_the_smallest_cells(sample, options, sized):
    result = scan(sample, vary={"ecal_cells": [1, 2, 4]}, **{**options, "checkpoint": sized})
    assert not any(limit.kind == "merged" for point in result.points for limit in point.limits)
    assert "5 mm (ECAL), 90 mm (HCAL)" in result.notes[0]
    assert "(in pflow reconstruct without --merge-mm 20 mm in the ECAL): efficiency" in result.notes[0]
    assert result["ecal_cells=4"].tokens < 0.8 * result.nominal.tokens
    assert result.provenance["options"]["merge_mm"] == 5.0


def test_a_model_of_one_size_hardly_sees_smaller_cells(sample, options, sized):
    config = sized.tokeniser.config
    of_one = dataclasses.replace(config, merge=dataclasses.replace(config.merge, ecal_sizes=()))
    model = dataclasses.replace(sized, tokeniser=dataclasses.replace(sized.tokeniser, config=of_one))
    result = scan(sample, vary={"ecal_cells": [1, 4]}, **{**options, "checkpoint": model})
    assert [limit.kind for limit in result["ecal_cells=4"].limits] == ["merged"]
    assert "20 mm (ECAL), 90 mm (HCAL) and 8 radiation lengths" in result.notes[0]
    assert "the one size of its training (data.merge.ecal_sizes: several)" in result.notes[0]
    assert result["ecal_cells=4"].tokens > 0.8 * result.nominal.tokens  # though there are fewer hits
    assert result["ecal_cells=4"].hits < 0.8 * result.nominal.hits


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"vary": {"time": [0.1]}}, "does not read the times of hits"),
        ({"vary": {"cells": [1]}}, "nothing to scan: cells=1 is the sample as it is; give other values of --vary"),
        ({}, "nothing to scan: give values of --vary"),
        (
            {"vary": {"hcal_threshold": [500.0]}},
            r"hcal_threshold=500 removes all hits of the HCAL, which have up to \d",
        ),
        ({"vary": {"layers": [7]}}, "no multiple of 7"),
        ({"vary": {"cells": [2]}, "detector": ["ild_g4", "cld"]}, "one detector for all files or one for each of 1"),
        ({"vary": {"cells": [2]}, "cluster": "local:1"}, "path of the checkpoint"),
        ({"vary": {"cells": [2]}, "detector": None, "file": "cld_zqq_small.edm4hep.root"}, "is of detector 'cld', and"),
    ],
)
def test_what_cannot_be_scanned_is_refused_before_any_work(sample, options, more, message):
    file = sample.parent / more.pop("file", sample.name)
    with patch.object(module, "_measured") as measured, pytest.raises((ConfigError, InputError), match=message):
        scan(file, **options | more)
    measured.assert_not_called()


def test_a_file_given_twice_or_without_truth_is_refused(sample, options, tmp_path):
    with pytest.raises(InputError, match="is given twice, or a copy of another one"):
        scan([sample, sample], vary={"cells": [2]}, **options)
    write_events(tmp_path / "data.root", read_events(sample, entry_stop=2).without_truth())
    with pytest.raises(InputError, match="holds none"):
        scan(tmp_path / "data.root", vary={"cells": [2]}, **options)


@pytest.mark.slow
def test_intervals_cover_on_splits_of_a_sample(data_dir):
    """Of 6 parts of 8 events, 68.3% hold the change of all 48 in their paired intervals (RESULTS.md: of 1,000)."""
    n_parts, size = 6, 8
    keys = ("event.visible_energy.response_median", "fake_energy_fraction", "class.photon.efficiency")
    events, general = read_events(data_dir / "g4" / "zqq_train.root", entry_stop=n_parts * size), load_model("general")
    both = [events, Move(layers=2).apply(events)]
    recos = [general.reconstruct(of) for of in both]

    def changes(rows):
        pairs = zip(recos, both, strict=True)
        trees = [evaluate(reco[rows], of[rows], oracle=False).algorithms[MODEL] for reco, of in pairs]
        nominal, moved = (dict(leaves(tree)) for tree in trees)
        return {key: ratio(moved[key], nominal[key]) for key in keys}

    whole = changes(slice(None))
    parts = [changes(slice(start, start + size)) for start in range(0, n_parts * size, size)]
    covered = [part[key].low <= whole[key].value <= part[key].high for part in parts for key in keys]
    assert 0.4 < np.mean(covered) < 0.95  # of 18, which are not all independent
