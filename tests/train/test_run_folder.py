import os

import pytest
import torch

from pflow.errors import OutputError
from pflow.train.run_folder import AtomicCheckpointIO, make_loggers, read_history


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, largest_file):
    writer = AtomicCheckpointIO()
    writer.save_checkpoint({"x": torch.ones(3)}, tmp_path / "best.ckpt")
    with largest_file(5000), pytest.raises(OutputError, match=r"cannot write .*best\.ckpt: File too large"):
        writer.save_checkpoint({"x": torch.ones(5000)}, tmp_path / "best.ckpt")
    assert os.listdir(tmp_path) == ["best.ckpt"]
    assert torch.load(tmp_path / "best.ckpt")["x"].tolist() == [1, 1, 1]


def test_both_logs_go_to_the_next_free_version(tmp_path):
    (tmp_path / "logs" / "version_3").mkdir(parents=True)
    assert {logger.log_dir for logger in make_loggers(tmp_path)} == {str(tmp_path / "logs" / "version_4")}


def test_values_are_by_name_and_epoch_from_one_and_the_later_log_counts(tmp_path, tmp_path_factory):
    """The second log repeats epoch 2, and ends in half a line that a killed process left."""
    logs = {
        2: "epoch,lr-AdamW,step,train/loss,val/loss\n,0.1,0,,\n0,,9,,3.0\n0,,9,4.0,\n1,,19,,2.0\n",
        10: "epoch,lr-AdamW,step,train/loss,val/loss\n1,,19,2.5,1.5\n2,,29,2.0,1.0\n3,,39,1.5,0.",
    }
    for version, text in logs.items():
        folder = tmp_path / "logs" / f"version_{version}"
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(text)
    assert read_history(tmp_path) == {"train/loss": {1: 4.0, 2: 2.5, 3: 2.0}, "val/loss": {1: 3.0, 2: 1.5, 3: 1.0}}
    assert not read_history(tmp_path_factory.mktemp("empty"))
