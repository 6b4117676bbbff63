from __future__ import annotations

import os

import pytest
import torch

from pflow.errors import OutputError
from pflow.train.checkpoint_io import AtomicCheckpointIO


def test_what_was_written_is_read_back(tmp_path):
    AtomicCheckpointIO().save_checkpoint({"x": torch.ones(3)}, tmp_path / "best.ckpt")
    assert torch.load(tmp_path / "best.ckpt")["x"].tolist() == [1, 1, 1]


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, largest_file):
    writer = AtomicCheckpointIO()
    writer.save_checkpoint({"x": torch.ones(3)}, tmp_path / "best.ckpt")
    with largest_file(5000), pytest.raises(OutputError, match=r"cannot write .*best\.ckpt: File too large"):
        writer.save_checkpoint({"x": torch.ones(5000)}, tmp_path / "best.ckpt")
    assert os.listdir(tmp_path) == ["best.ckpt"]
    assert torch.load(tmp_path / "best.ckpt")["x"].tolist() == [1, 1, 1]
