"""The Lightning module: training step, optimiser, logged metrics, and the header of its checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor

from pflow.checkpoint.format import KEY, Header
from pflow.data.datamodule import ParticleFlowData
from pflow.data.dataset import LabelledBatch
from pflow.errors import ConfigError, InputError
from pflow.model.api import ModelInputs, Reconstructor, TrainingOutput, describe
from pflow.model.pointing import PointingReconstructor
from pflow.train.callbacks import AveragedWeights
from pflow.train.compiling import compiled_step
from pflow.train.model_spec import ModelSpec
from pflow.train.quality import next_particle_errors
from pflow.train.schedule import warmup_cosine
from pflow.version import VERSION

__all__ = ["ParticleFlow"]

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
"""Precisions of training that are allowed: in all, weights, positions and directions stay in single precision."""

RANK_STRIDE = 0x9E3779B97F4A7C15
"""Difference of the seeds of two ranks: larger than any number of steps, and no multiple of 2**32 (see `data.seed`)."""


class ParticleFlow(pl.LightningModule):  # type: ignore[misc]
    """Training of a model of any architecture.

    The model is built once the data module has its tokeniser, which decides sizes and scales.

    >>> from functools import partial
    >>> from pflow.model.pointing import PointingNetworkConfig
    >>> module = ParticleFlow(reconstructor=partial(PointingReconstructor, network=PointingNetworkConfig(width=32)))

    Parameters
    ----------
    reconstructor
        What makes the model from sizes and scales: a class of `pflow.model.api.Reconstructor`, or one with options.
    lr
        Highest learning rate of AdamW.
    weight_decay
        Of weight matrices; biases, norms and single vectors are not decayed.
    schedule
        ``cosine``: linear warm-up, then a cosine down to `final_lr`; ``constant``: warm-up, then constant.
    warmup
        Share of all steps that warm up.
    final_lr
        Learning rate at the end of the cosine, as a share of `lr`.
    compile
        Whether to compile the training step of the model with `torch.compile`.

    Raises
    ------
    ConfigError
        A value out of range.
    """

    def __init__(
        self,
        *,
        reconstructor: Callable[[ModelInputs], Reconstructor] = PointingReconstructor,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        schedule: Literal["cosine", "constant"] = "cosine",
        warmup: float = 0.05,
        final_lr: float = 0.01,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if not (lr > 0 and weight_decay >= 0 and 0 <= warmup < 1 and 0 <= final_lr <= 1):
            raise ConfigError(
                f"expected lr > 0, weight_decay >= 0, 0 <= warmup < 1 and 0 <= final_lr <= 1, found lr {lr}, "
                f"weight_decay {weight_decay}, warmup {warmup}, final_lr {final_lr}"
            )
        if schedule not in ("cosine", "constant"):
            raise ConfigError(f"no schedule '{schedule}': expected cosine or constant")
        self.make_reconstructor = reconstructor
        self.lr = lr
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.warmup = warmup
        self.final_lr = final_lr
        self.compile_model = compile
        self.spec = ModelSpec()
        self.reconstructor: Reconstructor | None = None
        self._step: Callable[[Any], TrainingOutput] | None = None

    @property
    def data(self) -> ParticleFlowData:
        """The data module of the trainer.

        Raises
        ------
        ConfigError
            There is none, or it is not a `ParticleFlowData`.
        """
        module = getattr(self.trainer, "datamodule", None)
        if not isinstance(module, ParticleFlowData):
            raise ConfigError("ParticleFlow needs a ParticleFlowData data module: its tokeniser decides the sizes")
        return module

    def configure_model(self) -> None:
        """Build the model; called by Lightning after the data module is set up.

        Raises
        ------
        ConfigError
            Options that make no model, or that do not fit the trained model that `spec` names.
        InputError
            A checkpoint whose weights do not fit its configuration.
        """
        if self.reconstructor is not None:
            return
        if self.trainer.precision not in PRECISIONS:
            raise ConfigError(
                f"trainer.precision: with {self.trainer.precision} positions and directions of hits would not have the "
                f"precision that the network needs; expected {', '.join(PRECISIONS)}"
            )
        tokeniser = self.data.tokeniser
        assert tokeniser is not None  # the data module is set up
        try:
            reconstructor = self.make_reconstructor(ModelInputs(**tokeniser.model_inputs))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"model.reconstructor: {error}") from error
        self.data.use_readout(reconstructor.needs_readout)
        self.spec.check_network(reconstructor)
        new = self.spec.load_into(reconstructor, detector=tokeniser.detector)
        for how, parts in (("as the identity", new.identity), ("at random", new.random)):
            if parts:
                self.print(f"begin {how}: {', '.join(parts)}")
        self.reconstructor = reconstructor
        self._step = compiled_step(reconstructor) if self.compile_model else reconstructor.training_step

    def configure_optimizers(self) -> Any:
        """AdamW, and a learning rate that is set at each step.

        Raises
        ------
        ConfigError
            The number of steps is not known, so that there is no cosine over them.
        """
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, lr=self.lr)
        steps = self.trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            raise ConfigError("the schedule needs the number of steps: set trainer.max_steps (or no data.max_tokens)")
        factor = warmup_cosine(
            total=int(steps),
            warmup=round(self.warmup * steps),
            final=self.final_lr if self.schedule == "cosine" else 1.0,
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_epoch_start(self) -> None:
        """Shuffle anew."""
        self.data.set_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: LabelledBatch, batch_idx: int) -> None:
        """Seed from seed, step and rank, so that a training that goes on draws the same numbers as one in one go."""
        seed = (self.data.seed << 32) + self.global_step + self.global_rank * RANK_STRIDE
        torch.manual_seed(seed % 2**64)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Let the data go on where the training was, and set Lightning's count of the epoch's batches accordingly.

        With other numbers of ranks or workers than before, the remaining events make another number of batches.
        """
        state = checkpoint.get(type(self.data).__qualname__)
        if state is None:
            raise InputError(
                "the checkpoint does not say which events its epoch has seen: it was written by an older pflow, whose "
                "trainings cannot be continued; --start-from begins a new one with its weights"
            )
        self.data.load_state_dict(state)
        seen = self.data.n_batches_seen()
        if seen is not None:
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
            more = seen - progress["processed"]
            for stage in ("ready", "started", "processed", "completed"):  # one may be ahead of the next
                progress[stage] += more

    def training_step(self, labelled: LabelledBatch, batch_idx: int) -> Tensor:
        """One step; logs each loss by name.

        Raises
        ------
        InputError
            A loss is not a finite number; names the losses, and the files and entries of the batch.
        """
        assert self._step is not None
        losses = self._step(labelled.batch).losses
        total = _finite_total(losses, labelled)
        self.data.mark_seen(labelled)
        self._log("train", losses, len(labelled.batch) if labelled.weight else 0)
        # On the host: Lightning asks for what is beside the progress bar in each step, and would wait for a GPU again.
        self.log("loss", torch.tensor(total), prog_bar=True, logger=False)
        return losses["total"] * labelled.weight

    def validation_step(self, labelled: LabelledBatch, batch_idx: int) -> None:
        """Losses, and errors of each particle given the true particles before it."""
        self._evaluate("val", labelled)

    def test_step(self, labelled: LabelledBatch, batch_idx: int) -> None:
        """The same on test files."""
        self._evaluate("test", labelled)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the header: tokeniser, model, and where the weights come from."""
        assert self.data.tokeniser is not None
        assert self.reconstructor is not None
        header = Header(
            version=VERSION,
            tokeniser=self.data.tokeniser,
            model=describe(self.reconstructor),
            provenance=self._provenance(),
        )
        checkpoint[KEY] = json.dumps(header.to_dict())

    def _provenance(self) -> dict[str, Any]:
        data = self.data
        given = data.paths["train"]
        files = [given] if isinstance(given, str) else list(given or ())
        return {
            "train": [Path(path).name for path in files],
            "repeat": data.repeat,
            "began_with": self.spec.began_with,
            "n_events": data.n_events("train", distinct=True),
            "epoch": self.current_epoch,
            "step": self.global_step,
            "devices": self.trainer.world_size,
            "batch_size": data.batch_size,
            "seed": data.seed,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "schedule": self.schedule,
            "ema_decay": next((one.decay for one in self.trainer.callbacks if isinstance(one, AveragedWeights)), None),
            "precision": str(self.trainer.precision),
            "torch": torch.__version__,
        }

    def _log(self, prefix: str, losses: Mapping[str, Tensor], size: int) -> None:
        for name, value in losses.items():
            self._log_mean(f"{prefix}/{'loss' if name == 'total' else name}", value.detach(), size)

    def _log_mean(self, key: str, value: Tensor, size: int) -> None:
        """Log the mean of an epoch, over all ranks: `value` is that of `size` items."""
        # Lightning takes the mean of the ranks' sizes, rounded down: a multiple of their number keeps it exact.
        n_ranks = self.trainer.world_size
        self.log(key, value, on_step=False, on_epoch=True, batch_size=size * n_ranks, sync_dist=n_ranks > 1)

    def _evaluate(self, prefix: str, labelled: LabelledBatch) -> None:
        assert self.reconstructor is not None
        output = self.reconstructor.training_step(labelled.batch)
        self._log(prefix, output.losses, len(labelled.batch) if labelled.weight else 0)
        n = int(output.target.mask.sum())
        if n == 0 and self.trainer.world_size == 1:
            return
        errors = next_particle_errors(output.prediction, output.target, self.reconstructor.inputs.energy_std)
        for name, value in errors.items():
            # Each rank logs in each step, or they would wait for each other.
            self._log_mean(f"{prefix}/{name}", value if n else torch.zeros_like(value), n if labelled.weight else 0)


def _finite_total(losses: Mapping[str, Tensor], labelled: LabelledBatch) -> float:
    """The total loss. Stop before weights are changed by one that is not finite: all later ones would be lost."""
    total = losses["total"].detach().item()
    if math.isfinite(total):
        return total
    names = [name for name, loss in losses.items() if name != "total" and not bool(torch.isfinite(loss))]
    entries: dict[str, list[int]] = {}
    for path, entry in zip(labelled.path, labelled.entry.tolist(), strict=True):
        entries.setdefault(path, []).append(entry)
    where = "; ".join(f"{path}, entries {', '.join(map(str, sorted(numbers)))}" for path, numbers in entries.items())
    raise InputError(
        f"the training met a loss that is not a finite number ({', '.join(names) or 'total'}) in the batch of {where}; "
        "a lower lr or gradient clipping (trainer.gradient_clip_val) may help if these events are right"
    )
