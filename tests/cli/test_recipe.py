import functools
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from pflow.cli import recipe
from pflow.cli.main import main
from pflow.cli.recipe import TrainingRecipe, load_recipe, merged, run_recipe, training_summary
from pflow.errors import ConfigError, InputError, OutputError

SAMPLES = ("gamma1", "gammasep", "single", "multi", "zqq", "zh")


@pytest.fixture
def samples(tmp_path) -> Path:
    folder = tmp_path / "g4"
    folder.mkdir()
    for name in SAMPLES:
        for split in ("train", "val"):
            (folder / f"{name}_{split}.root").touch()
    return folder


class Pflow:
    """Stands for the command line: keeps the commands, and leaves the files that they would."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.code = 0
        self.data: dict[str, Any] = {"detector": None, "truth_tracks": False, "on_error": "raise"}
        self.summary = {"step": 7}

    def __call__(self, words: list[str]) -> int:
        self.calls.append(words)
        folder = Path(words[words.index("--output") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        for name in ["last.ckpt"] if words[0] == "fit" else ["model.json", "model.safetensors"]:
            (folder / name).write_text("new")
        if words[0] == "fit":
            (folder / "config.yaml").write_text(yaml.safe_dump({"data": self.data}))
        return self.code

    @property
    def verbs(self) -> list[str]:
        return [words[0] for words in self.calls]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@pytest.fixture
def pflow(monkeypatch) -> Pflow:
    """The command line, with commands that are not checked and trainings without checkpoints."""
    pflow = Pflow()
    monkeypatch.setattr(recipe, "training_summary", lambda run: {"run": Path(run).name, **pflow.summary})
    monkeypatch.setattr(recipe, "check", Mock())
    return pflow


@pytest.fixture
def run(samples, pflow, tmp_path):
    return functools.partial(run_recipe, output=tmp_path / "out", data_dir=samples, pflow=pflow)


def test_a_missing_sample_or_folder_is_named_before_any_training(samples, pflow, run):
    (samples / "zqq_val.root").unlink()
    with pytest.raises(InputError, match=r"zqq_val\.root: no such file: --data-dir"):
        run(load_recipe("general").variant("one"))
    with pytest.raises(ConfigError, match="--data-dir"):
        run(load_recipe("general").variant("one"), data_dir=None)
    with pytest.raises(ConfigError, match="nearest matches: photon"):
        load_recipe("foton")
    assert pflow.calls == []


def test_a_model_is_trained_in_stages_then_calibrated(samples, pflow, run, tmp_path):
    out = tmp_path / "out"
    assert run(load_recipe("general").variant("one")) == 0
    assert pflow.verbs == ["fit", "fit", "calibrate"]
    *stages, calibrate = pflow.calls
    for number, words in enumerate(stages, 1):
        assert words.count("--config") == 1
        for split, names in (("train", "single multi zqq gammasep zh"), ("val", "single multi zqq")):
            expected = [str(samples / f"{name}_{split}.root") for name in names.split()]
            assert json.loads(option(words, f"--data.{split}")) == expected
        assert option(words, "--output") == str(out / f"stage_{number}")
        assert "--checkpoint" not in words
    assert "--start-from" not in stages[0]
    assert option(stages[1], "--start-from") == str(out / "stage_1" / "last.ckpt")
    assert calibrate[1:4] == [str(samples / f"{name}_val.root") for name in ("single", "multi", "zqq")]
    assert option(calibrate, "--checkpoint") == str(out / "stage_2" / "last.ckpt")
    assert option(calibrate, "--choose-by") == "reference"
    texts = {path.name: path.read_text() for path in (out / "weights").iterdir()}
    summary = {"run": "stage_2", "step": 7, "before": {"run": "stage_1", "step": 7}}
    summary["calibrate"] = calibrate[1 : calibrate.index("--checkpoint")]
    assert json.loads(texts.pop("training.json")) == summary
    assert texts == {"model.json": "new", "model.safetensors": "new"}


def test_an_interrupted_recipe_resumes_its_stage(pflow, run, tmp_path, capsys):
    pflow.code = 143
    assert run(load_recipe("photon")) == 143
    assert pflow.verbs == ["fit"]
    assert capsys.readouterr().err == "== stage 1: interrupted; the same pflow recipe command resumes it\n"
    pflow.code, pflow.calls = 0, []
    assert run(load_recipe("photon")) == 0
    assert pflow.verbs == ["fit", "fit", "fit", "calibrate"]
    assert option(pflow.calls[0], "--checkpoint") == str(tmp_path / "out" / "stage_1" / "last.ckpt")
    assert "--checkpoint" not in pflow.calls[1]
    pflow.calls = []
    assert run(load_recipe("photon")) == 0
    assert pflow.verbs == []
    with pytest.raises(ConfigError, match=r"stage_1 is of another recipe or variant: choose another --output"):
        run(load_recipe("general").variant("one"))
    with pytest.raises(
        ConfigError, match=r"stage_1 was made with --data\.train .*, and not with .* --model\.lr=1: give"
    ):
        run(load_recipe("photon"), options=["--model.lr=1"])


def test_what_was_made_from_another_training_is_not_finished(pflow, run, tmp_path):
    """Weights are calibrated again, also with other options; a stage that began with another one is an error."""
    made = functools.partial(TrainingRecipe, samples={"val": ("zqq",)})
    one, out = made(stages=({},), calibrate={"eos-threshold": 0.9}), tmp_path / "out"
    for again in ("stage_1", "weights"):
        run(one)
        shutil.rmtree(out / again)
        pflow.calls, pflow.summary = [], {"step": 8}
        run(one)
        assert pflow.verbs == ["fit", "calibrate"][again == "weights" :]
    pflow.calls = []
    run(made(stages=({},), calibrate={"eos-threshold": 0.8}))
    assert pflow.verbs == ["calibrate"]
    two = made(stages=({}, {}))
    run(two)
    summary = (out / "stage_1" / recipe.SUMMARY).read_text()
    for changed in ("", summary.replace("8", "9")):  # removed, and trained again
        (out / "stage_1" / recipe.SUMMARY).write_text(changed or "{}")
        with pytest.raises(ConfigError, match=r"stage_2 began with another model than that of .*stage_1: remove it to"):
            run(two)


def test_a_calibration_reads_the_files_as_the_last_stage_does(pflow, run):
    pflow.data |= {
        "detector": "tiles.yaml",
        "layout": None,
        "truth_tracks": True,
        "on_error": "skip",
        "val": ["v.root"],
    }
    run(TrainingRecipe(stages=({},), samples={"val": ("zqq",)}, calibrate={"on-error": "raise", "eos-threshold": 0.9}))
    read = ["v.root", "--detector", "tiles.yaml", "--truth-tracks", "--on-error", "raise", "--eos-threshold", "0.9"]
    assert pflow.calls[-1][1 : len(read) + 1] == read


def test_what_cannot_be_written_is_named(pflow, run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*file.out.stage_1.recipe\.yaml: Not a directory"):
        run(load_recipe("photon"), output=tmp_path / "file" / "out")


def test_skipped_entries_do_not_stop_a_recipe_and_are_in_its_exit_code(pflow, run):
    pflow.code = 3
    assert run(load_recipe("photon")) == 3
    assert pflow.verbs == ["fit", "fit", "fit", "calibrate"]


def test_a_variant_and_more_options_change_the_training(pflow, run):
    options = ["--seed_everything=2", "--trainer.max_epochs=1"]
    paper = load_recipe("paper")
    assert run(paper.variant("v1_flags"), options=options) == 0
    words = pflow.calls[0]
    config = yaml.safe_load(Path(option(words, "--config")).read_text())
    assert config == merged(paper.stages[0], paper.variants["v1_flags"])
    assert set(options) < set(words)


def test_a_variant_may_be_a_recipe_of_its_own_or_change_another():
    variants = {"their": {"stages": [{"model": {"lr": 1.0}}]}, "b": {"of": "their", "model": {"warmup": 0.0}}}
    recipe = TrainingRecipe(stages=({}, {}), samples={"train": ("zqq",)}, variants=variants)
    assert recipe.variant("b").stages == ({"model": {"lr": 1.0, "warmup": 0.0}},)
    assert recipe.variant("b").samples == recipe.samples


def test_files_of_ones_own_take_the_place_of_the_samples(pflow, run):
    recipe = load_recipe("paper").variant("as_published_v1_kind")
    options = ["--data.train=a.h5", "--data.val", "b.h5"]
    assert run(recipe, data_dir=None, options=options) == 0
    assert pflow.calls[0].count("--data.train") == 0
    with pytest.raises(ConfigError, match=r"--data-dir, or give files of your own: -- --data\.train"):
        run(recipe, data_dir=None, options=options[:1])


def test_a_variant_that_there_is_not_is_an_error(run):
    with pytest.raises(ConfigError, match="no variant 'v3': expected one of v1_flags, v1_kind"):
        load_recipe("paper").variant("v3")
    with pytest.raises(ConfigError, match="choose one with --variant: v1_flags, v1_kind"):
        run(load_recipe("paper"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: []", "needs at least one stage"),
        ("stage: [{}]", r"unknown field 'stage' \(nearest matches: stages"),
        ("stages: [{}, 7]", r"'stages\[1\]' must be a mapping, found 7"),
        ("stages: [{}]\nsamples: {vall: [zqq]}", r"samples: unknown field 'vall' \(nearest matches: val\)"),
        ("stages: [{}]\nsamples: {val: zqq}", r"'samples\['val'\]' must be a list of names, found 'zqq'"),
        ("stages: [{}]\nvariants: {a: {of: b}, b: {}}", "no variant before 'a' called 'b': expected one of none"),
        ("stages: [{}]\ncalibrate: {}", "'calibrate' needs validation files: name their samples under 'samples'"),
        ("stages: [{}]\nsamples: {val: [zqq]}\ncalibrate: {output: x}", "calibrate: leave out 'output'"),
    ],
)
def test_an_error_in_a_recipe_says_what_is_wrong(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"mine\.yaml.*{message}"):
        load_recipe(tmp_path / "mine.yaml")


def test_options_of_the_calibration_are_values_lists_or_flags(pflow, run):
    options = {"eos-threshold": [0.9, 0.97], "energy-cut": "predicted", "truth-tracks": True, "force": False}
    run(TrainingRecipe(stages=({},), samples={"val": ("zqq",)}, calibrate=options))
    assert pflow.calls[-1][4:10] == ["--eos-threshold", "0.9", "0.97", "--energy-cut", "predicted", "--truth-tracks"]


def test_all_that_is_to_run_is_checked_before_it_runs(pflow, run):
    recipe.check.side_effect = ConfigError("stage 3: wrong")
    with pytest.raises(ConfigError, match="stage 3: wrong"):
        run(load_recipe("photon"))
    assert pflow.calls == []
    recipe.check.side_effect = None
    assert run(load_recipe("photon")) == 0
    (commands,) = recipe.check.call_args.args
    assert [*commands] == ["stage 1", "stage 2", "stage 3", "calibrate"]
    assert [words[:3] for words in commands.values()] == [words[:3] for words in pflow.calls]
    run(load_recipe("photon"))
    assert [*recipe.check.call_args.args[0]] == []


def test_the_time_of_a_training_is_that_of_its_parts(model, save_model, tmp_path):
    save_model(model, tmp_path / "last.ckpt", provenance={"step": 7, "wall_s": 95.2, "parts": 2})
    summary = training_summary(tmp_path)
    assert (summary["wall_s"], summary["parts"], summary["steps"]) == (95, 2, 7)
    assert summary["sha256"] == hashlib.sha256((tmp_path / "last.ckpt").read_bytes()).hexdigest()


def test_options_of_fit_follow_after_two_dashes(monkeypatch):
    given = {}
    monkeypatch.setattr(recipe, "run_recipe", lambda recipe, **options: given.update(options) or 0)
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
    assert run_recipe(recipe, output=folder / "out", data_dir=data_dir, pflow=pflow, **options) == 1
    return calls[0]


@pytest.mark.parametrize(("name", "variant"), [("photon", None), ("general", "both"), ("general", "energies")])
def test_the_recipes_that_come_with_pflow_pass_the_check(name, variant, tmp_path):
    assert run_checked(load_recipe(name).variant(variant), tmp_path)[0] == "fit"


def network(**options: object) -> dict[str, Any]:
    path = "pflow.model.pointing.PointingReconstructor"
    return {"model": {"reconstructor": {"class_path": path, "init_args": {"network": options}}}}


FIRST = network(width=16, heads=2)
PAIR = {"train": ["zqq"], "val": ["zqq"]}


@pytest.mark.parametrize(
    ("where", "changed", "message"),
    [
        ("stage 2", {"model": {"larning": 1}}, "does not accept option 'larning'"),
        ("stage 2", network(widht=8), "does not accept option 'widht'"),
        ("stage 2", {"model": {"lr": -1.0}}, "expected lr > 0"),
        ("stage 2", {"data": {"hit_features": ["x"]}}, "data.hit_features is ['x'], but the stages"),
        ("calibrate", {"eos-treshold": 0.9}, "unrecognized arguments: --eos-treshold 0.9"),
        ("calibrate", {"eos-threshold": "high"}, "argument --eos-threshold: invalid float value: 'high'"),
        ("calibrate", {"on-error": ["skip", "raise"]}, "unrecognized arguments: raise"),
    ],
)
def test_what_would_fail_is_told_before_the_first_stage_runs(where, changed, message, tmp_path, capsys):
    recipe = {"stages": [FIRST], "samples": PAIR}
    recipe |= {"calibrate": changed} if where == "calibrate" else {"stages": [FIRST, changed]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    for split in PAIR:
        (tmp_path / f"zqq_{split}.root").touch()
    words = ["recipe", tmp_path / "mine.yaml", "-o", tmp_path / "out", "--data-dir", tmp_path]
    assert main([str(word) for word in words]) == 2
    shown = capsys.readouterr()
    assert f"pflow recipe: error: {where}: " in shown.err
    assert message in shown.err
    assert "== stage 1" not in shown.out


def test_a_model_to_begin_with_counts_for_the_stages_behind(tmp_path):
    stages = [{"start_from": "general"}, {"start_from": None, "model": {"lr": 1.0e-4}}]
    options = {"existence-threshold": 0.5, "truth-tracks": True}
    assert run_checked(TrainingRecipe(stages=stages, samples=PAIR, calibrate=options), tmp_path)


@pytest.mark.usefixtures("no_figures", "few_resamples")
def test_the_published_system_runs_on_the_papers_own_files(sample_dir, tmp_path, capsys):
    sample, out = str(sample_dir / "gamma1_small.h5"), tmp_path / "out"
    files = ["--", f"--data.train={sample}", f"--data.val={sample}", "--trainer.max_epochs=1"]
    words = ["recipe", "paper", "--variant", "as_published_v1_kind", "--output", str(out), *files]
    assert main(words) == 0
    assert "rule 'stable'" not in capsys.readouterr().err  # its rule is calo
    (out / "stage_1" / recipe.SUMMARY).unlink()  # as if interrupted: the same command resumes
    assert main(words) == 0
    assert "nothing left to train" in capsys.readouterr().out
    model, reco = str(out / "stage_1" / "best.ckpt"), str(tmp_path / "reco.root")
    assert main(["reconstruct", sample, "--checkpoint", model, "--output", reco, "--max-particles", "3"]) == 0
    assert main(["evaluate", reco, "--truth", sample, "--output", str(out), "--no-plots"]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["settings"]["truth_rule"] == "calo"
    assert metrics["n_truth"] >= metrics["n_events_read"] == 6


def test_options_that_the_recipe_gives_itself_are_refused(pflow, run):
    for given in ("--output=y", "--checkpoint", "-o"):
        with pytest.raises(ConfigError, match=rf"{given.partition('=')[0]} is given by the recipe to each stage"):
            run(load_recipe("paper").variant("v1_flags"), options=[given])
    assert not pflow.calls


def test_help_lists_the_variants_of_each_recipe(capsys):
    with pytest.raises(SystemExit):
        main(["recipe", "paper", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("general", "paper"):
        variants = load_recipe(name).variants
        assert f"{name}: " in shown
        assert all(re.search(rf"\b{variant}\b", shown) for variant in variants)
    assert "photon: " not in shown
