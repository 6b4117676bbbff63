import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pflow.cli.main import main
from pflow.cli.recipe import check
from pflow.train.recipe import TrainingRecipe, load_recipe, run_recipe


def test_options_of_fit_follow_after_two_dashes(monkeypatch):
    given = {}
    monkeypatch.setattr("pflow.train.recipe.run_recipe", lambda recipe, **options: given.update(options) or 0)
    assert main(["recipe", "photon", "-o", "out", "--", "--trainer.max_epochs", "1"]) == 0
    assert given["options"] == ["--trainer.max_epochs", "1"]
    assert given["output"] == "out"


def run_checked(recipe: TrainingRecipe, folder: Path, **options: Any) -> list[str]:
    """Check a recipe on empty files; returns the words of its first command, which fails."""
    calls: list[list[str]] = []
    for split, names in recipe.samples.items():
        for name in names:
            path = folder / f"{name}_{split}.root"
            path.parent.mkdir(exist_ok=True)
            path.touch()

    def pflow(words: list[str]) -> int:
        calls.append(words)
        return 1

    data_dir = folder if recipe.samples else None
    assert run_recipe(recipe, output=folder / "out", data_dir=data_dir, pflow=pflow, check=check, **options) == 1
    return calls[0]


@pytest.mark.parametrize(("name", "variant"), [("photon", None), ("general", "both")])
def test_the_recipes_that_come_with_pflow_pass_the_check(name, variant, tmp_path):
    assert run_checked(load_recipe(name).variant(variant), tmp_path)[0] == "fit"


def network(**options: object) -> dict[str, Any]:
    path = "pflow.model.pointing.PointingReconstructor"
    return {"model": {"reconstructor": {"class_path": path, "init_args": {"network": options}}}}


STAGES = [network(width=16, heads=2), network(refine_layers=1)]
FULL = "legacy/gamma1_30.h5"
SAMPLES = {"train": ["zqq"], "val": ["zqq"]}


@pytest.mark.parametrize(
    ("where", "changed", "message"),
    [
        ("stage 3", {"model": {"larning": 1}}, "does not accept option 'larning'"),
        ("stage 3", network(widht=8), "does not accept option 'widht'"),
        ("stage 3", {"model": {"lr": -1.0}}, "expected lr > 0"),
        ("stage 3", {"data": {"hit_features": ["x"]}}, "data.hit_features is ['x'], but the stages"),
        ("calibrate", {"eos-treshold": 0.9}, "unrecognized arguments: --eos-treshold 0.9"),
        ("calibrate", {"eos-threshold": "high"}, "argument --eos-threshold: invalid float value: 'high'"),
        ("calibrate", {"on-error": ["skip", "raise"]}, "unrecognized arguments: raise"),
    ],
)
def test_what_would_fail_is_told_before_the_first_stage_runs(where, changed, message, tmp_path, capsys):
    recipe = {"stages": STAGES, "samples": SAMPLES}
    recipe |= {"calibrate": changed} if where == "calibrate" else {"stages": [*STAGES, changed]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    for split in SAMPLES:
        (tmp_path / f"zqq_{split}.root").touch()
    words = ["recipe", tmp_path / "mine.yaml", "-o", tmp_path / "out", "--data-dir", tmp_path]
    assert main([str(word) for word in words]) == 1
    shown = capsys.readouterr()
    assert f"pflow recipe: error: {where}: " in shown.err
    assert message in shown.err
    assert "== stage 1" not in shown.out


def test_a_model_to_begin_with_counts_for_the_stages_behind(tmp_path):
    stages = [{"start_from": "general"}, {"start_from": None, "model": {"lr": 1.0e-4}}]
    options = {"existence-threshold": 0.5, "truth-tracks": True}
    assert run_checked(TrainingRecipe(stages=stages, samples=SAMPLES, calibrate=options), tmp_path)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("folder", "name", "n"), [("sample_dir", "gamma1_small.h5", 6), ("data_dir", FULL, 30)])
def test_the_published_system_runs_on_the_papers_own_files(request, tmp_path, folder, name, n, capsys):
    sample, out = str(request.getfixturevalue(folder) / name), tmp_path / "out"
    files = ["--", f"--data.train={sample}", f"--data.val={sample}", "--trainer.max_epochs=1"]
    assert main(["recipe", "paper", "--variant", "as_published_v1_kind", "--output", str(out), *files]) == 0
    assert "rule 'stable'" not in capsys.readouterr().err  # its rule is calo
    model, reco = str(out / "stage_1" / "best.ckpt"), str(tmp_path / "reco.root")
    assert main(["reconstruct", sample, "--checkpoint", model, "--output", reco, "--max-particles", "3"]) == 0
    assert main(["evaluate", reco, "--truth", sample, "--output", str(out), "--no-plots"]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["settings"]["truth_rule"] == "calo"
    assert metrics["n_truth"] >= metrics["n_events_read"] == n


def test_help_lists_the_variants_of_each_recipe(capsys):
    with pytest.raises(SystemExit):
        main(["recipe", "paper", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("general", "paper"):
        variants = load_recipe(name).named_variants
        assert f"{name}: " in shown
        assert all(re.search(rf"\b{variant}\b", shown) for variant in variants)
    assert "photon: " not in shown
