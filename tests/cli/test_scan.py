import csv
import json

import pytest

from pflow.cli.main import main
from pflow.errors import ConfigError


@pytest.fixture(scope="module")
def scanned(sample_dir, tmp_path_factory):
    """The folder of a scan of three hadronic Z decays, in a folder to be made."""
    out = tmp_path_factory.mktemp("scan") / "cells"
    words = [sample_dir / "zqq_test_small.root", "--vary", "cells=1,2", "--entries", 3, "-o", out, "--device", "cpu"]
    assert main(["scan", *map(str, words)]) == 0
    return out


def test_a_scan_is_a_table_figures_and_a_report(scanned):
    names = {path.name for path in scanned.iterdir()}
    assert {"scan.csv", "scan.json", "report.html", "points", "fake_energy_fraction.png"} <= names
    assert {path.name for path in (scanned / "points").iterdir()} == {"nominal.json", "cells_2.json", "null_test.json"}
    rows = list(csv.DictReader((scanned / "scan.csv").read_text(encoding="utf-8").splitlines()))
    (row,) = (
        row
        for row in rows
        if (row["point"], row["algorithm"], row["quantity"]) == ("cells=2", "PFlow", "fake_energy_fraction")
    )
    assert row["cells"] == "2"
    assert float(row["change_low"]) < float(row["change"]) < float(row["change_high"])
    assert row["paired"] == "1"
    assert "merged" in row["limits"].split("; ")
    report = (scanned / "report.html").read_text(encoding="utf-8")
    assert "Null test" in report and "merged to 20 mm" in report  # noqa: PT018
    document = json.loads((scanned / "scan.json").read_text(encoding="utf-8"))
    assert document["provenance"]["scan"]["vary"] == {"cells": ["1", "2"]}
    assert [point["name"] for point in document["points"]] == ["nominal", "cells=2", "null test"]
    assert main(["inspect", str(scanned / "scan.json")]) == 0


def test_an_output_is_refused_and_finished_points_stay(scanned, sample_dir, call, capsys):
    words = (sample_dir / "zqq_test_small.root", "--vary", "cells=2", "--entries", 3, "-o", scanned, "--device", "cpu")
    with pytest.raises(ConfigError, match=r"scan\.csv: a file is there; .*--force"):
        call(*words)
    before = (scanned / "points" / "nominal.json").stat().st_mtime_ns
    call(*words, "--force")
    assert (scanned / "points" / "nominal.json").stat().st_mtime_ns == before
    said = capsys.readouterr().out
    assert "PFlow, cells=2" in said
    assert "cell" in said
    assert "Errors of ratios are of paired comparisons" in said
