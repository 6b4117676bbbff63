from __future__ import annotations

import pytest

from pflow.cli.main import main

pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def test_prepare_and_fit(small, tiny, tmp_path, capsys):
    folder = tmp_path / "prepared"
    words = ["prepare", small["val"], "-o", str(folder), "--quiet"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{folder}: 50 events of 1 files, ild_g4, 1 shards, 1.4 MB\n"
    assert main(words) == 0  # all is there
    options = [
        f"--data.train={folder}",
        f"--data.val={folder}",
        f"--output={tmp_path / 'run'}",
        "--trainer.max_steps=2",
    ]
    assert main(["fit", *tiny, *options]) == 0
    assert (tmp_path / "run" / "last.ckpt").is_file()
    capsys.readouterr()
    assert main(["prepare", small["test"], "-o", str(folder), "--quiet"]) == 1
    assert "was prepared otherwise" in capsys.readouterr().err
