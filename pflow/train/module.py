"""The Lightning module: training step, optimiser, logged metrics, and the header of its checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Literal, NamedTuple

import awkward as ak
import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import StochasticWeightAveraging, WeightAveraging
from torch import Tensor, nn

from pflow.checkpoint import KEY, PREFIX, Checkpoint, Header, check_weights, header_of, load_weights, read_checkpoint
from pflow.config import VERSION
from pflow.data.batch import Batch, Target
from pflow.data.datamodule import ParticleFlowData, differences
from pflow.data.dataset import LabelledBatch
from pflow.errors import ConfigError, InputError, check_choice
from pflow.inference.events import ParticleCollector
from pflow.metrics.match import Matching, ParticleTable, match_tables
from pflow.model.api import (
    GeneratedParticles,
    ModelInputs,
    Reconstructor,
    build_reconstructor,
    describe,
    reconstructor_class,
)
from pflow.model.pointing import PointingReconstructor
from pflow.physics.arrays import Index
from pflow.tokens.particles import Calibration
from pflow.tokens.tokeniser import Tokeniser

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial that takes all singular values to about 1 (K. Jordan et al. 2024, Muon)."""
ITERATIONS = 5
MOMENTUM = 0.95
UPDATE_RMS = 0.2
"""Root mean square of an update divided by the learning rate, about AdamW's (J. Liu et al. 2025, arXiv:2502.16982)."""
MIN_SIDE = 16
"""Shorter matrices, such as the last one to a logit, are left to AdamW."""


class Muon(torch.optim.AdamW):
    """Momentum with orthogonal updates for matrices of at least `MIN_SIDE` rows and columns, AdamW for the rest.

    Takes one group of parameters or several with options of AdamW; a group of both kinds is divided into two.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float) -> None:
        divided = []
        for group in groups:
            parameters: dict[bool, list[nn.Parameter]] = {True: [], False: []}
            for parameter in group["params"]:
                parameters[parameter.ndim == 2 and min(parameter.shape) >= MIN_SIDE].append(parameter)
            divided += [{**group, "params": some, "orthogonal": kind} for kind, some in parameters.items() if some]
        super().__init__(divided, lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters by their gradients; gradients of matrices are used up."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in (group for group in self.param_groups if group["orthogonal"]):
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                state = self.state[parameter]
                state.setdefault("step", torch.zeros(()))  # AdamW looks for it when a state is loaded
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1.0 - MOMENTUM)
                # Nesterov's form: the newest gradient has more weight than in the momentum alone.
                update = orthogonal(parameter.grad.lerp(momentum, MOMENTUM))
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                # Orthogonal [R, C] has a root mean square of 1 / sqrt(max(R, C)), other for each shape.
                parameter.sub_(update, alpha=group["lr"] * UPDATE_RMS * max(parameter.shape) ** 0.5)
                # AdamW's step, which follows, passes over parameters without a gradient.
                parameter.grad = None
        super().step()
        return loss


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix with all singular values about 1, by Newton-Schulz iterations; float [R, C]."""
    # The Gram matrix below then has the shorter side, which is cheaper.
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.t()).t()
    a, b, c = COEFFICIENTS
    # Singular values above 1 would diverge, and a gradient of zeros would become NaN.
    x: Tensor = matrix / matrix.norm().clamp(min=1e-12)
    for _ in range(ITERATIONS):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


WRONG_ENERGY = "wrong_energy"
MONITOR = f"val/{WRONG_ENERGY}"
"""What chooses the best epoch: the share of the validation targets' energy that is wrong, see `wrong_energy`."""

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
"""Precisions of training that are allowed: in all, weights, positions and directions stay in single precision."""

NO_MODEL = "there is no model: load one (load_from_checkpoint, start_from, ckpt_path; --checkpoint), or train one"

RANK_STRIDE = 0x9E3779B97F4A7C15
"""Difference of the seeds of two ranks: above any number of batches, and no multiple of 2**32 (see `data.seed`)."""


class Prediction(NamedTuple):
    """Particles of a batch [event, particle]; numbers and entries of its events, int64 [event]; their files."""

    particles: ak.Array
    event: Index
    entry: Index
    path: tuple[str, ...]


class ParticleFlow(pl.LightningModule):  # type: ignore[misc]
    """Training, validation, test and prediction of a model of any architecture, with Lightning's `Trainer`.

    The model is built once the data module has its tokeniser, which decides sizes and scales, or when a checkpoint is
    loaded, which has one (`load_from_checkpoint`, ``ckpt_path``). Callbacks that need its layers in their ``setup``
    (finetuning, pruning) get them there of a loaded model, else after ``pl_module.configure_model()``. ConfigError: a
    value out of range. InputError: `start_from` is no trained model that pflow can use.

    >>> from functools import partial
    >>> from pflow.model.pointing import PointingNetworkConfig
    >>> module = ParticleFlow(reconstructor=partial(PointingReconstructor, network=PointingNetworkConfig(width=32)))

    Parameters
    ----------
    reconstructor
        The architecture, which makes the model from sizes and scales: a class of `pflow.model.api.Reconstructor`, or a
        `functools.partial` of one; on the command line also ``pointing`` or ``translation``.
    start_from
        Begin with the weights of this trained model: a checkpoint, a folder of weights, or the name of a model that
        comes with pflow; parts that it does not have begin at random.
    lr
        Highest learning rate.
    optimiser
        ``adamw``, or ``muon``: orthogonal updates of the larger matrices (`Muon`), and AdamW for the rest.
    weight_decay
        Of weight matrices; biases, norms and single vectors are not decayed.
    warmup
        Share of all steps in which the learning rate rises to `lr`; from there it falls as half a cosine.
    final_lr
        Learning rate at the end of the cosine, as a share of `lr`; 1: it stays at `lr`.
    """

    def __init__(
        self,
        *,
        reconstructor: Callable[[ModelInputs], Reconstructor] = PointingReconstructor,
        start_from: str | Path | None = None,
        lr: float = 1e-3,
        optimiser: Literal["adamw", "muon"] = "adamw",
        weight_decay: float = 0.01,
        warmup: float = 0.05,
        final_lr: float = 0.01,
    ) -> None:
        super().__init__()
        if not callable(reconstructor):
            raise ConfigError(f"reconstructor must be a class or a partial of one, found {reconstructor!r}")
        if not (lr > 0 and weight_decay >= 0 and 0 <= warmup < 1 and 0 <= final_lr <= 1):
            raise ConfigError(
                f"expected lr > 0, weight_decay >= 0, 0 <= warmup < 1 and 0 <= final_lr <= 1, found lr {lr}, "
                f"weight_decay {weight_decay}, warmup {warmup}, final_lr {final_lr}"
            )
        self.save_hyperparameters()
        self.make_reconstructor = reconstructor
        check_choice(optimiser, ("adamw", "muon"), "optimiser")
        self.lr, self.warmup, self.final_lr = lr, warmup, final_lr
        self.optimiser, self.weight_decay = optimiser, weight_decay
        self.tokeniser: Tokeniser | None = None
        """Tokeniser of the weights; None: they are random."""
        self.calibration: Calibration | None = None
        """Calibration of the loaded weights, until training changes them."""
        self.reconstructor: Reconstructor | None = None
        self.began_with: dict[str, Any] | None = None
        """Provenance of the weights that a new training starts from; None: they are random."""
        self._before: Mapping[str, Any] = {}  # provenance of the checkpoint that is resumed
        self._trained_on: dict[str, Any] | None = None  # provenance of the last training
        self._started: Checkpoint | None = None
        self._unchecked: tuple[LabelledBatch, list[str], Tensor, torch.cuda.Event | None] | None = None
        self._began = time.monotonic()  # s
        if start_from is not None:
            self._started = read_checkpoint(start_from)
            check_weights(self._started)  # so that its options are safe defaults: they make a network that fits
            self.tokeniser, self.calibration = self._started.header.tokeniser, self._started.header.calibration
            self.began_with = {"sha256": self._started.digest, **self._started.header.provenance}
            if reconstructor is PointingReconstructor:  # the default
                self.make_reconstructor = partial(build_reconstructor, self._started.header.model)

    def save_hyperparameters(
        self, *args: Any, ignore: Sequence[str] | str = (), frame: FrameType | None = None, logger: bool = True
    ) -> None:
        """Lightning's method, also for a subclass; what makes the model is in a checkpoint's header, as plain data."""
        ignored = {"reconstructor", "start_from", "_instantiator", *([ignore] if isinstance(ignore, str) else ignore)}
        frame = frame or sys._getframe(1)  # Lightning reads the arguments of the caller
        super().save_hyperparameters(*args, ignore=[*ignored], frame=frame, logger=logger)

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, weights_only: bool = True, **options: Any) -> Any:
        """Lightning's method; by default it reads weights and plain data only, so it runs no code from the file."""
        return super().load_from_checkpoint(checkpoint_path, *args, weights_only=weights_only, **options)

    @property
    def data(self) -> ParticleFlowData:
        """The data module of the trainer; ConfigError if it is not a `ParticleFlowData`."""
        module = getattr(self.trainer, "datamodule", None)
        if not isinstance(module, ParticleFlowData):
            needed = "its tokeniser decides the sizes"
            raise ConfigError(f"ParticleFlow needs a ParticleFlowData, or a subclass, as the datamodule: {needed}")
        return module

    def setup(self, stage: str) -> None:
        """A ConfigError for a precision that is not among `PRECISIONS`, and for Lightning's average of the weights."""
        averages = any(isinstance(callback, StochasticWeightAveraging) for callback in self.trainer.callbacks)
        if averages and self.reconstructor is None and self.trainer.training:
            raise ConfigError("StochasticWeightAveraging copies a model before it is built: use --ema.decay instead")
        if self.trainer.precision not in PRECISIONS:
            raise ConfigError(
                f"trainer.precision: with {self.trainer.precision} positions and directions of hits would not be in "
                f"the single precision that the network needs; expected {', '.join(PRECISIONS)}"
            )

    def configure_model(self) -> None:
        """Build the model if its tokeniser is known; else `on_load_checkpoint` does.

        ConfigError names options that make no model, or that do not fit the weights to start from. InputError: as of
        `load_weights`.
        """
        # Lightning calls this also before a test or a prediction, whose checkpoint brings the model.
        known = self._trainer is not None and (self._started is not None or self.trainer.state.fn == "fit")
        if not known or self.data.tokeniser is None:
            return
        # One that was loaded or trained before stays: `setup` has measured the files of this training.
        reconstructor = self.reconstructor or self._make(self.data.tokeniser)
        if self.reconstructor is None and self._started is not None:
            new, left_out = begin_with(reconstructor, self._started)
            for what, parts in (("begin at random", new), ("left out", left_out)):
                if parts:
                    self.print(f"{what}: {', '.join(parts)}")
        self._set(reconstructor, self.data.tokeniser)

    def _make(self, tokeniser: Tokeniser) -> Reconstructor:
        try:
            made = self.make_reconstructor(ModelInputs(**tokeniser.model_inputs))
            # Else a checkpoint could not be written, or not be read again.
            if self._trainer is not None and self.trainer.state.fn == "fit":
                reconstructor_class(describe(made)["class_path"])
            return made
        except (TypeError, ValueError) as error:
            raise ConfigError(f"model.reconstructor: {error}") from error

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the tokeniser of the checkpoint, and build the model unless there is one; then Lightning loads weights.

        It is the checkpoint's unless `reconstructor` was given, which may decode in another way.

        ConfigError: the checkpoint has other network options. InputError: not a checkpoint of pflow.
        """
        header = header_of(checkpoint, file="the checkpoint")
        if self._trainer is None:
            self.began_with = dict(header.provenance)
        else:
            # Of step 0 are checkpoints that Lightning's tuner returns to: no part of a training.
            self._before = header.provenance if header.provenance.get("step", 1) else {}
            self.began_with = header.provenance.get("began_with")
            decay = header.provenance.get("ema_decay")
            if self.trainer.training and decay is not None and self._ema_decay is None:
                raise ConfigError(f"the checkpoint averages its weights: resume it with --ema.decay {decay}")
            theirs = header.provenance.get("optimiser", self.optimiser)
            if self.trainer.training and theirs != self.optimiser:
                raise ConfigError(f"the optimiser is {self.optimiser}, but {theirs} of the checkpoint is resumed")
        if self.make_reconstructor is PointingReconstructor:  # the default
            self.make_reconstructor = partial(build_reconstructor, header.model)
        ours = self.reconstructor or self._make(header.tokeniser)
        if {name: value.shape for name, value in ours.state_dict(prefix=PREFIX).items()} != {
            name: value.shape for name, value in checkpoint["state_dict"].items()
        }:
            refuse(describe(ours), header.model)
        self.calibration, self._trained_on = header.calibration, None
        self._set(ours, header.tokeniser)

    def _set(self, reconstructor: Reconstructor, tokeniser: Tokeniser) -> None:
        self.reconstructor, self.tokeniser = reconstructor, tokeniser
        if self._trainer is not None:
            if self.data.tokeniser is not tokeniser:
                self.data.use(tokeniser)
            self.data.use_readout(reconstructor.needs_readout)
            self.tokeniser = self.data.tokeniser

    def configure_optimizers(self) -> Any:
        """The optimiser and the learning rate of each step; ConfigError if the number of steps is not known."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        # Lightning clips no gradients before an optimiser that could unscale them itself.
        fused = self.trainer.strategy.root_device.type == "cuda" and self.trainer.precision == "32-true"
        muon = self.optimiser == "muon"
        optimiser = Muon(groups, lr=self.lr) if muon else torch.optim.AdamW(groups, lr=self.lr, fused=fused or None)
        steps = self.trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            needed = "set trainer.max_steps, or max_epochs and no data.max_tokens"
            raise ConfigError(f"the schedule needs the number of steps: {needed}")
        factor = warmup_cosine(total=int(steps), warmup=round(self.warmup * steps), final=self.final_lr)
        scheduler = Schedule(optimiser, factor)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Begin to count the time; weights that change are no longer calibrated."""
        self.calibration, self._trained_on = None, self._sample()
        self._began = time.monotonic()

    def on_fit_end(self) -> None:
        """Keep where the weights come from, for another trainer that saves them."""
        self._trained_on = self._provenance()

    def on_train_start(self) -> None:
        """Take the learning rate and the weight decay of the options: a checkpoint that is resumed has its own.

        Schedules of a subclass's own, and of Lightning's tuner, are left as they are.
        """
        for scheduler in (config.scheduler for config in self.trainer.lr_scheduler_configs):
            if not isinstance(scheduler, Schedule):
                continue
            scheduler.base_lrs = [self.lr for _ in scheduler.base_lrs]
            # Groups that a finetuning adds have no schedule; those that it freezes at first are empty.
            for group, factor in zip(scheduler.optimizer.param_groups, scheduler.lr_lambdas, strict=False):
                decay = self.weight_decay if any(parameter.ndim >= 2 for parameter in group["params"]) else 0.0
                # The scheduler sets a learning rate only after a step: the first one would still have the checkpoint's.
                group.update(initial_lr=self.lr, lr=self.lr * factor(scheduler.last_epoch), weight_decay=decay)

    def on_train_batch_start(self, batch: LabelledBatch, batch_idx: int) -> None:
        """Seed from seed, batch and rank, so that a resumed training draws the same numbers as one in one go."""
        assert self.reconstructor is not None
        seed = (self.data.seed << 32) + self.trainer.fit_loop.total_batch_idx
        torch.manual_seed((seed + self.global_rank * RANK_STRIDE) % 2**64)
        # Without the rank: this draw is the same on all ranks.
        self.reconstructor.draw_shared(Random(seed))

    def training_step(self, labelled: LabelledBatch, batch_idx: int) -> Tensor:
        """One step; logs each loss by name, and checks the losses of the batch before (`check_losses`)."""
        assert self.reconstructor is not None
        losses = self.reconstructor.training_step(labelled.batch)
        before = self.check_losses()
        values = torch.stack([loss.detach().float() for loss in losses.values()])
        copied = torch.cuda.Event() if values.is_cuda else None  # type: ignore[no-untyped-call]
        host = values.to("cpu", non_blocking=copied is not None)
        if copied is not None:
            copied.record()
        # Without the batch, which would stay in the GPU's memory for another step.
        self._unchecked = labelled._replace(batch=None), [*losses], host, copied  # type: ignore[arg-type]
        self._log("train", losses, len(labelled.batch) if labelled.weight else 0)
        if before is not None:
            # On the host: Lightning reads the progress bar's numbers in each step, which would synchronise with a GPU.
            self.log("loss", before, prog_bar=True)
        # With the weights, the ranks' averaged gradient is the joint batch's; a batch that fills a gap has 0.
        return losses["total"] * labelled.weight

    def check_losses(self) -> Tensor | None:
        """The total loss of the last batch, on the host; None if it was checked before.

        Read one batch late, to avoid a GPU synchronisation, and before a checkpoint is written: none holds weights that
        a loss that is not finite has changed. InputError names losses, files and entries.
        """
        if self._unchecked is None:
            return None
        (labelled, names, values, copied), self._unchecked = self._unchecked, None
        if copied is not None:
            # The copy to the host did not wait: its numbers are there only after this event.
            copied.synchronize()
        losses = dict(zip(names, values, strict=True))
        total: Tensor = losses.pop("total")
        if not total.isfinite():
            names = [name for name, value in losses.items() if not value.isfinite()] or ["total"]
            entries: dict[str, list[int]] = {}
            for path, entry in zip(labelled.path, labelled.entry.tolist(), strict=True):
                entries.setdefault(path, []).append(entry)
            where = "; ".join(f"{path}, entries {', '.join(map(str, sorted(n)))}" for path, n in entries.items())
            raise InputError(
                f"the training met a loss that is not a finite number ({', '.join(names)}) in the batch of {where}; "
                "a lower lr or gradient clipping (trainer.gradient_clip_val) may help if these events are right"
            )
        return total

    def on_train_epoch_end(self) -> None:
        """Check the last batch."""
        self.check_losses()

    on_validation_start = on_train_epoch_end

    def validation_step(self, labelled: LabelledBatch, batch_idx: int) -> None:
        """Losses, and the wrong energy when decoded; of ``val``, in a test of ``test``."""
        if self.reconstructor is None:
            raise ConfigError(NO_MODEL)
        split = "test" if self.trainer.testing else "val"
        losses = self.reconstructor.training_step(labelled.batch)
        self._log(split, losses, len(labelled.batch) if labelled.weight else 0)
        wrong, true = wrong_energy(self.reconstructor, labelled.batch)
        # Each rank logs in each step: Lightning averages over the ranks, and would hang without one of them.
        if true > 0 or self.trainer.world_size > 1:
            mev = round(1e3 * true) if labelled.weight else 0  # Lightning weights a mean with whole numbers
            share = torch.tensor(wrong / max(true, 1e-9), device=self.device)
            self._log_mean(f"{split}/{WRONG_ENERGY}", share, mev)

    test_step = validation_step

    def forward(self, batch: Batch) -> GeneratedParticles:
        """Decode the particles of a batch, in the units of the tokeniser (`predict_step` gives physical ones)."""
        if self.reconstructor is None:
            raise ConfigError(NO_MODEL)
        if not isinstance(batch, Batch):
            raise TypeError(f"expected a Batch, found {type(batch).__name__}; events go through pflow.reconstruct")
        return self.reconstructor.generate(batch)

    def predict_step(self, labelled: LabelledBatch, batch_idx: int) -> Prediction | None:
        """The particles of a batch; None for a padding batch, which only keeps ranks in step."""
        if not labelled.weight:
            return None
        generated, n_events = self(labelled.batch), len(labelled.batch)
        collector = ParticleCollector(n_events, linked=False)
        # A prediction has no links: the fractions are dense, and need not leave the GPU.
        collector.add(np.arange(n_events), dataclasses.replace(generated, hit_fraction=None, track_fraction=None))
        assert self.tokeniser is not None
        particles = self.tokeniser.decode(collector.tokens(), calibration=self.calibration).particles
        event, entry = labelled.event.cpu().numpy(), labelled.entry.cpu().numpy()
        return Prediction(particles, event, entry, labelled.path)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the header: tokeniser, model, and where the weights come from; `check_losses` first."""
        self.check_losses()
        assert self.tokeniser is not None
        assert self.reconstructor is not None
        parts: Any = {"tokeniser": self.tokeniser, "calibration": self.calibration, "provenance": self._provenance()}
        header = Header(version=VERSION, model=describe(self.reconstructor), **parts)
        checkpoint[KEY] = json.dumps(header.to_dict())

    @property
    def _ema_decay(self) -> float | None:
        # Lightning's own averages do not say it.
        averages = (callback for callback in self.trainer.callbacks if isinstance(callback, WeightAveraging))
        return next((getattr(average, "decay", None) for average in averages), None)

    def _sample(self) -> dict[str, Any]:
        """What the weights are trained on, for their provenance."""
        data, given = self.data, self.data.paths["train"]
        files = [given] if isinstance(given, str) else list(given or ())
        return {
            # With the files before a resume, which the weights have learnt, too.
            "train": list(dict.fromkeys([*self._before.get("train", ()), *(Path(path).name for path in files)])),
            "uuids": sorted({*self._before.get("uuids", ()), *data.uuids("train")}),
            "repeat": data.repeat,
            "n_events": data.n_events("train", distinct=True),  # of the last part
            "batch_size": data.batch_size,
            "seed": data.seed,
        }

    def _provenance(self) -> dict[str, Any]:
        trains = self.trainer.state.fn == "fit"
        if not trains and self._trained_on is None:
            return dict(self._before or self.began_with or {})  # the weights are as they were loaded
        present = {
            "began_with": self.began_with,
            "epoch": self.current_epoch,
            "step": self.global_step,
            "wall_s": self._before.get("wall_s", 0.0) + time.monotonic() - self._began,
            "parts": self._before.get("parts", 0) + 1,
            "devices": self.trainer.world_size,
            **{name: getattr(self, name) for name in ("lr", "optimiser", "weight_decay", "final_lr")},
            "ema_decay": self._ema_decay,
            "precision": str(self.trainer.precision),
            "torch": torch.__version__,
        }
        # Since the training the module may have got another trainer, and other data to test on.
        return {**present, **(self._sample() if trains else self._trained_on or {})}

    def _log(self, prefix: str, losses: Mapping[str, Tensor], size: int) -> None:
        if "total" not in losses or (taken := {"loss", WRONG_ENERGY}.intersection(losses)):
            wrong = f"{min(taken)} is the name of another quantity" if "total" in losses else "total is missing"
            raise ConfigError(f"losses of {type(self.reconstructor).__name__}.training_step: {wrong}")
        for name, value in losses.items():
            self._log_mean(f"{prefix}/{'loss' if name == 'total' else name}", value.detach(), size)

    def _log_mean(self, key: str, value: Tensor, size: int) -> None:
        """Log the mean of an epoch, over all ranks: `value` is the mean of `size` items."""
        # Lightning takes the mean of the ranks' sizes, rounded down: a multiple of their number keeps it exact.
        n_ranks = self.trainer.world_size
        self.log(key, value, on_step=False, on_epoch=True, batch_size=size * n_ranks, sync_dist=n_ranks > 1)


def begin_with(reconstructor: Reconstructor, started: Checkpoint) -> tuple[list[str], list[str]]:
    """Load the weights of a trained model.

    Returns the network's parts that the model lacks, which stay random, and the model's parts that the network lacks.
    ConfigError: options that do not fit the weights. InputError: as of `load_weights`.
    """
    ours, theirs = reconstructor.state_dict(prefix=PREFIX), started.state_dict
    new, left_out = _parts_without(ours, theirs), _parts_without(theirs, ours)
    weights = {name: value for name, value in theirs.items() if name not in left_out}
    # `load_weights` wants all weights: new parts get the random ones that they have.
    weights |= {name: ours[name] for name in new}
    try:
        load_weights(reconstructor, dataclasses.replace(started, state_dict=weights))
    except InputError:
        # Options that differ say more than shapes that do not fit; without any the first error stands.
        refuse(describe(reconstructor), started.header.model)
        raise
    return sorted(set(new.values())), sorted(set(left_out.values()))


def _parts_without(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> dict[str, str]:
    """Parts (modules) of weights that have no weight among `others`.

    An item of a list is not a part, since a stack with another number of layers is another network.
    """
    parts: dict[str, str] = {}
    for name in weights:
        path = name.split(".")
        parents = [".".join(path[:n]) for n in range(2, len(path))]
        absent = next((part for part in parents if not any(key.startswith(f"{part}.") for key in others)), None)
        if absent is not None and not absent.rpartition(".")[2].isdecimal():
            parts[name] = absent.removeprefix(PREFIX)
    return parts


def refuse(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """A ConfigError that names the class or the network options that differ from the model's, if any."""
    changed = differences("model.reconstructor", {"class_path": ours["class_path"]}, theirs)
    networks = (made["init_args"].get("network", {}) for made in (ours, theirs))
    if changed := changed or differences("model.reconstructor.network", *networks):
        raise ConfigError("; ".join(changed))


class Schedule(torch.optim.lr_scheduler.LambdaLR):
    """The learning rate of each step as `ParticleFlow.configure_optimizers` makes it, by `warmup_cosine`."""


def warmup_cosine(*, total: int, warmup: int, final: float) -> Callable[[int], float]:
    """Factor on the learning rate as a function of the step, from 0.

    Rises linearly to 1 over `warmup` steps, then falls as half a cosine to `final` at step `total`, and stays there.

    >>> factor = warmup_cosine(total=10, warmup=2, final=0.0)
    >>> [round(factor(step), 3) for step in (0, 1, 2, 6, 10, 11)]
    [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """

    def factor(step: int) -> float:
        if step < warmup:
            # A first step with the learning rate 0 would change nothing.
            return (step + 1) / warmup
        progress = min((step - warmup) / max(total - warmup, 1), 1.0)
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return factor


def wrong_energy(reconstructor: Reconstructor, batch: Batch) -> tuple[float, float]:
    """Decode a batch as a reconstruction does; wrong energy and the energy of all targets, GeV.

    Wrong energy = lost + fake + mismeasured energy: of targets without a particle, of particles without a target, and
    the absolute difference of each matched pair (`pflow.metrics.match`, as in `pflow evaluate`). It does not see class
    and charge, and directions little: smeared by 50 mrad, those of `general` have 6.0 instead of 4.5%.
    """
    target = batch.target
    assert target is not None  # checked by the training step
    # In the mixed precision of a training the particles would differ from a reconstruction's.
    with torch.autocast(target.mask.device.type, enabled=False):
        generated = reconstructor.generate(batch)
    if bool((generated.truncated & (target.mask.sum(1) > reconstructor.decoding.max_particles)).any()):
        text = "events have more target particles than are decoded, and the others count as lost"
        warnings.warn(f"{text}: raise model.reconstructor.decoding.max_particles", stacklevel=2)
    truth, reco = (_table(particles, reconstructor.inputs) for particles in (target, generated))
    matches = match_tables(truth, reco, Matching())
    true, measured = truth.energy[matches.truth], reco.energy[matches.reco]
    unmatched = truth.energy.sum() - true.sum() + reco.energy.sum() - measured.sum()
    return float(unmatched + abs(true - measured).sum()), float(truth.energy.sum())


def _table(particles: Target | GeneratedParticles, inputs: ModelInputs) -> ParticleTable:
    mask = particles.mask
    energy = 10 ** (inputs.energy_mean + inputs.energy_std * particles.energy[mask].double())  # GeV
    columns = {"pdg": particles.pdg[mask], "charge": particles.charge[mask], "energy": energy}
    columns |= {"momentum": energy[:, None] * particles.direction[mask], "counts": mask.sum(1)}
    return ParticleTable(**{name: column.cpu().numpy() for name, column in columns.items()})
