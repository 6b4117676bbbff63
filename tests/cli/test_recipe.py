from __future__ import annotations

from pflow.cli.main import main


def test_options_of_fit_follow_after_two_dashes(monkeypatch):
    given = {}
    monkeypatch.setattr("pflow.train.recipe.run_recipe", lambda recipe, **options: given.update(options) or 0)
    assert main(["recipe", "paper", "--variant", "v1_kind", "-o", "out", "--", "--data.train", "a.root"]) == 0
    assert given["options"] == ["--data.train", "a.root"]
    assert (given["variant"], given["output"]) == ("v1_kind", "out")
