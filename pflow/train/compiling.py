"""Compiling a training step whose tensors have other lengths in each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pflow.data.batch import Batch
from pflow.model.api import Reconstructor, TrainingOutput

__all__ = ["compiled_step"]


def compiled_step(reconstructor: Reconstructor, **options: Any) -> Callable[[Batch], TrainingOutput]:
    """The training step of a reconstructor, compiled once for all lengths.

    Numbers that the data decide (pairs of particles and items) are symbols of the graph and do not end it, and sizes
    that happen to be equal in the first batch may differ in the next ones.

    Parameters
    ----------
    reconstructor
        Told by `Reconstructor.before_compiling`.
    options
        Of `torch.compile`, beside ``dynamic``.
    """
    import torch._dynamo  # here: it takes a second, which a training that is not compiled need not wait for
    from torch.fx.experimental import _config as shapes

    reconstructor.before_compiling()
    compiled = torch.compile(reconstructor.training_step, dynamic=True, **options)

    def step(batch: Batch) -> TrainingOutput:
        with (
            torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
            shapes.patch(use_duck_shape=False),  # type: ignore[attr-defined]
        ):
            return compiled(batch)

    return step
