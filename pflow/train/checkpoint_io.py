"""How the trainer writes checkpoints: beside their place, then renamed into it."""

from __future__ import annotations

import io
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from pflow.io.atomic import replacing

__all__ = ["AtomicCheckpointIO"]


class AtomicCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Writes a checkpoint so that the one before stays until the new one is whole.

    Lightning's own copies the finished file from the temporary folder where that is on another file system: a full disk
    or an interruption would leave half a checkpoint under its final name.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint.

        Raises
        ------
        OutputError
            It could not be written.
        """
        content = io.BytesIO()  # on a full disk torch hides the error of the file behind one of its own
        torch.save(checkpoint, content)
        with replacing(path) as partial:
            partial.write_bytes(content.getbuffer())
