"""The Lightning module: network, losses, optimiser, what is logged, and what goes into a checkpoint."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from pflow.checkpoint.format import KEY, Checkpoint, differences, pack_header
from pflow.data.datamodule import ParticleFlowData
from pflow.data.dataset import LabelledBatch
from pflow.errors import ConfigError, InputError, nearest
from pflow.event.events import Flag
from pflow.event.particles import Reconstruction
from pflow.model.api import ARCHITECTURES, DEFAULT, SIZES, Architecture, Taught, architecture, build_network
from pflow.tokens.tokens import ParticleTokens
from pflow.train.ema import AveragedWeights
from pflow.train.quality import next_particle_errors
from pflow.train.schedule import warmup_cosine

__all__ = ["ParticleFlow", "complete_arguments", "network_arguments"]

WRITTEN = (
    "charge",
    "pdg",
    "energy",
    "direction",
    "score",
    "pdg_probability",
    "energy_sigma",
    "direction_sigma",
    "mask",
    "truncated",
)
"""What a prediction keeps of the particles; links to hits need the events (`pflow.reconstruct`)."""


def complete_arguments(function: Any, given: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    """The given arguments with the defaults of those that are not given; sizes and required ones are left out.

    Raises
    ------
    ConfigError
        An argument that does not exist (with its nearest matches), or one that the tokeniser decides.
    """
    parameters = inspect.signature(function).parameters
    known = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in SIZES and parameter.default is not parameter.empty
    }
    for name in given or {}:
        if name in SIZES:
            raise ConfigError(f"{what}: '{name}' follows from the data and cannot be set")
        if name not in known:
            raise ConfigError(f"{what} has no option '{name}'", suggestions=nearest(name, known))
    return {**known, **(given or {})}


def network_arguments(given: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    """The complete arguments of a network, with its ``architecture``; sizes are left out.

    Options of other architectures may be there, as a command line gives them all, as long as they have their default.

    Raises
    ------
    ConfigError
        No such architecture, an option that does not exist or is of another architecture, or one that the tokeniser
        decides.
    """
    rest = dict(given or {})
    name = rest.pop("architecture", DEFAULT)
    try:
        kind = architecture(name)
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error
    return {"architecture": name, **complete_arguments(kind.network, _own(rest, kind, "network", what), what)}


def _own(given: dict[str, Any], kind: Architecture, part: Literal["network", "loss"], what: str) -> dict[str, Any]:
    """The given arguments without those of other architectures that have their default."""
    own = inspect.signature(getattr(kind, part)).parameters
    kept = {}
    for name, value in given.items():
        others = [inspect.signature(getattr(other, part)).parameters for other in ARCHITECTURES.values()]
        theirs = [parameters[name].default for parameters in others if name in parameters]
        if name in own or not theirs:
            kept[name] = value
        elif value not in theirs:
            raise ConfigError(f"{what}: '{name}' is no option of {getattr(kind, part).__name__}")
    return kept


class ParticleFlow(pl.LightningModule):  # type: ignore[misc]
    """Training of a network of any architecture.

    The network is built once the data module has its tokeniser, whose vocabularies and features decide the sizes; with
    a checkpoint, from the checkpoint's own configuration.

    Parameters
    ----------
    network
        ``architecture`` (`pflow.model.api`) and the arguments of that network but for the sizes.
    loss
        Arguments of the architecture's loss but for ``special``, which is the network's.
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
    max_particles
        Longest sentence to generate in prediction; goes into the checkpoint.
    compile
        Whether to compile the network with `torch.compile`.

    Raises
    ------
    ConfigError
        An option that does not exist or cannot work.
    """

    def __init__(
        self,
        *,
        network: dict[str, Any] | None = None,
        loss: dict[str, Any] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        schedule: Literal["cosine", "constant"] = "cosine",
        warmup: float = 0.05,
        final_lr: float = 0.01,
        max_particles: int = 150,
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
        if max_particles < 1:
            raise ConfigError(f"max_particles must be at least 1, found {max_particles}")
        self.network_arguments = network_arguments(network, "network")
        self.loss_arguments = self._complete_loss(loss, "loss")
        self.lr = lr
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.warmup = warmup
        self.final_lr = final_lr
        self.max_particles = max_particles
        self.compile_network = compile
        self.network: nn.Module | None = None
        self.loss: nn.Module | None = None

    @property
    def architecture(self) -> Architecture:
        """What the network is."""
        return architecture(self.network_arguments["architecture"])

    def _complete_loss(self, given: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
        """Arguments of the loss; how special tokens are treated is the network's to say."""
        kind = self.architecture
        arguments = complete_arguments(kind.loss, _own(dict(given or {}), kind, "loss", what), what)
        if "special" in arguments:
            arguments["special"] = self.network_arguments["special"]
        return arguments

    @property
    def data(self) -> ParticleFlowData:
        """The data module that this is trained with.

        Raises
        ------
        ConfigError
            There is none, or it is none of pflow's.
        """
        module = getattr(self.trainer, "datamodule", None)
        if not isinstance(module, ParticleFlowData):
            raise ConfigError("ParticleFlow needs a ParticleFlowData data module: its tokeniser decides the sizes")
        return module

    def configure_model(self) -> None:
        """Build network and loss; called by Lightning after the data module is set up.

        Raises
        ------
        ConfigError
            Arguments that make no network or loss, or a network other than that of the checkpoint to continue; a second
            reading without a first that is trained.
        InputError
            A checkpoint whose weights do not fit its configuration.
        """
        if self.network is not None:
            return
        tokeniser = self.data.tokeniser
        assert tokeniser is not None
        if self.data.checkpoint is not None:
            self._adopt(self.data.checkpoint.header)
        if self.architecture.readout and not tokeniser.recipe.readout:
            name = self.network_arguments["architecture"]
            raise ConfigError(f"network.architecture {name} needs what the detector measured: set data.readout: true")
        try:
            self.network = build_network(self.network_arguments, tokeniser.sizes)
            self.loss = self.architecture.loss(**self.loss_arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"network or loss: {error}") from error
        if self.data.checkpoint is None and not all(part.requires_grad for part in self.network.parameters()):
            raise ConfigError(
                "network.revise_layers: only a second reading is taught, to a network that is trained: name one with "
                "--start_from"
            )
        if self.data.checkpoint is not None and (self.data.begins or not self.trainer.training):
            self._take_weights(self.data.checkpoint)
        if self.compile_network:
            self.network.compile(dynamic=True)

    def _take_weights(self, checkpoint: Checkpoint) -> None:
        """Take the weights of a checkpoint; to continue a training, Lightning does that with all the rest.

        A training that only begins with them may have parts more, and these begin at random.
        """
        weights = dict(checkpoint.state_dict)
        if self.data.begins:
            weights = {**self._new_parts(weights), **weights}
        try:
            self.load_state_dict(weights)
        except RuntimeError as error:
            reason = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
            raise InputError(
                f"its weights do not fit its configuration: {reason}", file=checkpoint.path, field="state_dict"
            ) from error

    def _new_parts(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of parts of the network (of its direct children) of which the checkpoint has none at all."""

        def part(name: str) -> str:
            return ".".join(name.split(".")[:2])

        known = {part(name) for name in weights}
        new = {name: value for name, value in self.state_dict().items() if part(name) not in known}
        if new:
            self.print(f"begin at random: {', '.join(sorted({part(name) for name in new}))}")
        return new

    def _adopt(self, header: Mapping[str, Any]) -> None:
        """Take the network of a checkpoint; one to train must be the configured one, where it was configured."""
        theirs = network_arguments(header["network"], "network of the checkpoint")
        ours = self.network_arguments
        silent: dict[str, Any] = {}
        if self.data.inherits:
            silent = network_arguments({"architecture": ours["architecture"]}, "network")
            silent["architecture"] = DEFAULT
        if self.trainer.training:
            compared = ours
            if ours["architecture"] != theirs["architecture"] or self.data.begins:  # its options are others, or may be
                compared = {"architecture": ours["architecture"]}
            differing = differences(compared, theirs, silent=silent)
            if differing:
                raise ConfigError(f"the checkpoint to {self.data.purpose} has a network with {'; '.join(differing)}")
            if self.data.begins and ours["architecture"] == theirs["architecture"]:
                theirs |= {key: value for key, value in ours.items() if value != silent[key]}
        silent_loss = self.loss_arguments == self._complete_loss(None, "loss")
        self.network_arguments = theirs
        if not self.trainer.training or (self.data.inherits and silent_loss):
            self.loss_arguments = self._complete_loss(header.get("loss"), "loss of the checkpoint")
        if not self.trainer.training:
            self.max_particles = int(header["max_particles"])

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
        """Draw from the seed and the step, so that a training that goes on draws as one in one go."""
        torch.manual_seed((self.data.seed << 32) + self.global_step)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Let the data begin where the training was; Lightning asks for them before it says so itself."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        self.data.go_on(int(checkpoint["epoch"]), int(progress["completed"]))

    def training_step(self, labelled: LabelledBatch, batch_idx: int) -> Tensor:
        """One step; logs each loss by name."""
        losses = self._teach(labelled).losses
        self._log("train", losses, len(labelled.batch))
        self.log("loss", losses["total"].detach(), prog_bar=True, logger=False)
        return losses["total"]

    def validation_step(self, labelled: LabelledBatch, batch_idx: int) -> None:
        """Losses and errors of the true sentences' next particles."""
        self._evaluate("val", labelled)

    def test_step(self, labelled: LabelledBatch, batch_idx: int) -> None:
        """The same on test files."""
        self._evaluate("test", labelled)

    def predict_step(self, labelled: LabelledBatch, batch_idx: int) -> dict[str, Tensor]:
        """Write the particles of a batch; an event without source tokens has none.

        Returns
        -------
        dict
            Plain tensors, as Lightning wants them; `decode` makes particles of them.
        """
        assert self.network is not None
        batch = labelled.batch
        generated = self.architecture.generate(self.network, batch, max_particles=self.max_particles)
        parts = (part for part in (batch.hits, batch.tracks, batch.tracker_hits) if part is not None)
        seen = torch.stack([part.mask.any(dim=1) for part in parts]).any(dim=0)  # [B]
        columns = {name: getattr(generated, name) for name in WRITTEN if getattr(generated, name) is not None}
        columns["mask"] &= seen[:, None]
        columns["truncated"] &= seen
        return {**columns, "event": labelled.event, "flags": labelled.flags}

    def decode(self, output: Mapping[str, Tensor]) -> Reconstruction:
        """Particles from what `predict_step` returned."""
        assert self.data.tokeniser is not None
        columns: dict[str, Any] = {name: values.cpu().numpy() for name, values in output.items()}
        truncated = columns.pop("truncated")
        columns["flags"] = columns["flags"] | np.where(truncated, int(Flag.MAX_PARTICLES), 0)
        event, flags = columns.pop("event"), columns.pop("flags")
        calibration = None if self.data.checkpoint is None else self.data.checkpoint.calibration
        return self.data.tokeniser.decode(ParticleTokens(**columns), calibration=calibration, event=event, flags=flags)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the header: tokeniser, network, loss and where the weights come from."""
        data = self.data
        assert data.tokeniser is not None
        checkpoint[KEY] = pack_header(
            tokeniser=data.tokeniser,
            network=self.network_arguments,
            loss=self.loss_arguments,
            max_particles=self.max_particles,
            provenance=self._provenance(data),
            version=version("pflow"),
        )

    def _provenance(self, data: ParticleFlowData) -> dict[str, Any]:
        given = data.paths["train"]
        files = [given] if isinstance(given, str) else list(given or ())
        parts: list[pl.Callback] = self.trainer.callbacks
        return {
            "train": [Path(path).name for path in files],
            "repeat": data.repeat,
            "began_with": self._beginning(data),
            "n_events": data.tokeniser.n_events if data.tokeniser is not None else 0,
            "epoch": self.current_epoch,
            "step": self.global_step,
            "batch_size": data.batch_size,
            "seed": data.seed,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "schedule": self.schedule,
            "ema_decay": next((part.decay for part in parts if isinstance(part, AveragedWeights)), None),
            "precision": str(self.trainer.precision),
            "torch": torch.__version__,
        }

    def _beginning(self, data: ParticleFlowData) -> dict[str, Any] | None:
        """The weights that the training began with, and where these come from; none: random ones."""
        if data.checkpoint is None:
            return None
        provenance = data.checkpoint.header.get("provenance", {})
        if not data.begins:
            return provenance.get("began_with")  # type: ignore[no-any-return]
        return {"sha256": data.checkpoint.digest, **provenance}

    def _teach(self, labelled: LabelledBatch) -> Taught:
        return self.architecture.teach(self.network, self.loss, labelled.batch)

    def _log(self, prefix: str, losses: Mapping[str, Tensor], size: int) -> None:
        for name, value in losses.items():
            key = f"{prefix}/{'loss' if name == 'total' else name}"
            self.log(key, value.detach(), on_step=False, on_epoch=True, batch_size=size)

    def _evaluate(self, prefix: str, labelled: LabelledBatch) -> None:
        taught = self._teach(labelled)
        self._log(prefix, taught.losses, len(labelled.batch))
        assert self.data.tokeniser is not None
        n = int(taught.target.mask.sum())
        if n == 0:
            return
        errors = next_particle_errors(taught.prediction, taught.target, self.data.tokeniser.energy.std[0])
        for name, value in errors.items():
            self.log(f"{prefix}/{name}", value, on_step=False, on_epoch=True, batch_size=n)
