from __future__ import annotations

import pytest

from pflow.train.history import read_history


@pytest.fixture
def run(tmp_path):
    """A run that was continued: the second log repeats epoch 2."""
    logs = {
        2: "epoch,lr-AdamW,step,train/loss,val/loss\n,0.1,0,,\n0,,9,,3.0\n0,,9,4.0,\n1,,19,,2.0\n",
        10: "epoch,lr-AdamW,step,train/loss,val/loss\n1,,19,2.5,1.5\n2,,29,2.0,1.0\n",
    }
    for version, text in logs.items():
        folder = tmp_path / "logs" / f"version_{version}"
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(text)
    return tmp_path


def test_values_are_by_name_and_epoch_from_one_and_the_later_log_counts(run):
    assert read_history(run) == {"train/loss": {1: 4.0, 2: 2.5, 3: 2.0}, "val/loss": {1: 3.0, 2: 1.5, 3: 1.0}}


def test_a_folder_without_logs_has_no_history(tmp_path):
    assert not read_history(tmp_path)


def test_half_a_line_that_a_killed_process_left_is_not_read(run):
    with (run / "logs" / "version_10" / "metrics.csv").open("a") as log:
        log.write("3,,39,1.5,0.")
    assert max(read_history(run)["val/loss"]) == 3
