"""The Lightning module: network, losses, optimiser, what is logged, and what goes into a checkpoint."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from pflow.checkpoint.format import KEY, Checkpoint, differences, pack_header
from pflow.checkpoint.migrate import CLASS_PATHS, POINTING_OPTIONS, migrate_model_options, migrate_state_dict
from pflow.data.datamodule import ParticleFlowData
from pflow.data.dataset import LabelledBatch
from pflow.errors import ConfigError, InputError, nearest
from pflow.event.events import Flag
from pflow.event.particles import Reconstruction
from pflow.model.api import ModelInputs, Reconstructor, TrainingOutput, build_reconstructor, reconstructor_class
from pflow.tokens.tokens import ParticleTokens
from pflow.train.ema import AveragedWeights
from pflow.train.quality import next_particle_errors
from pflow.train.schedule import warmup_cosine

__all__ = ["DEFAULT", "ParticleFlow", "network_arguments", "option_defaults"]

DEFAULT = "translation"
LOSS_DEFAULTS: dict[str, Any] = {"weights": None, "energy": "mse", "direction": "mse", "label_smoothing": 0.0}

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


def network_arguments(given: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    """The options of a network and their defaults, under the names of `pflow.checkpoint.migrate`.

    Options of other architectures may be there, as a command line gives them all, as long as they have their default.

    Raises
    ------
    ConfigError
        No such architecture, or an option that does not exist or is of another architecture.
    """
    rest = dict(given or {})
    name = rest.pop("architecture", DEFAULT)
    if name not in CLASS_PATHS:
        raise ConfigError(f"{what}: no architecture '{name}': expected one of {', '.join(CLASS_PATHS)}")
    others = {option: value for other in CLASS_PATHS for option, value in option_defaults(other).items()}
    known = option_defaults(name)
    own = {}
    for option, value in rest.items():
        if option in known:
            own[option] = value
        elif option not in others:
            raise ConfigError(f"{what} has no option '{option}'", suggestions=nearest(option, known))
        elif value != others[option]:
            raise ConfigError(f"{what}: '{option}' is no option of the architecture '{name}'")
    return {"architecture": name, **known, **own}


def option_defaults(name: str) -> dict[str, Any]:
    """Options of an architecture under their names in format 1, with their defaults."""
    kind = reconstructor_class(CLASS_PATHS[name])
    configs = {part: parameter.default for part, parameter in inspect.signature(kind).parameters.items()}
    old = {new: option for option, new in POINTING_OPTIONS.items()} if name == "pointing" else {}
    old |= {("network", "energy_sigma"): "energy_width"}
    return {
        old.get((part, field.name), field.name): getattr(configs[part], field.name)
        for part in ("network", "decoding", "training")
        if part in configs
        for field in dataclasses.fields(configs[part])
        if (part, field.name) in old or part == "network"
    }


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
        self.loss_arguments = self._own_loss(loss)
        self.lr = lr
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.warmup = warmup
        self.final_lr = final_lr
        self.max_particles = max_particles
        self.compile_network = compile
        self.reconstructor: Reconstructor | None = None

    def _own_loss(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """The given options of the loss that are not the defaults."""
        return {name: value for name, value in (given or {}).items() if LOSS_DEFAULTS.get(name, name) != value}

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
        if self.reconstructor is not None:
            return
        tokeniser = self.data.tokeniser
        assert tokeniser is not None
        if self.data.checkpoint is not None:
            self._adopt(self.data.checkpoint.header)
        try:
            spec = migrate_model_options(self.network_arguments, self.loss_arguments, self.max_particles)
            self.reconstructor = build_reconstructor(spec, ModelInputs(**tokeniser.sizes))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"network or loss: {error}") from error
        if self.reconstructor.needs_readout and not tokeniser.recipe.readout:
            name = self.network_arguments["architecture"]
            raise ConfigError(f"network.architecture {name} needs what the detector measured: set data.readout: true")
        for name in self.reconstructor.first_stage_modules:
            self.reconstructor.get_submodule(name).requires_grad_(False)
        if self.data.checkpoint is None and self.reconstructor.first_stage_modules:
            raise ConfigError(
                "network.revise_layers: only a second reading is taught, to a network that is trained: name one with "
                "--start_from"
            )
        if self.data.checkpoint is not None and (self.data.begins or not self.trainer.training):
            self._take_weights(self.data.checkpoint)
        if self.compile_network:
            self.reconstructor.compile(dynamic=True)

    def _take_weights(self, checkpoint: Checkpoint) -> None:
        """Take the weights of a checkpoint; to continue a training, Lightning does that with all the rest.

        A training that only begins with them may have parts more, and these begin at random.
        """
        weights = migrate_state_dict(checkpoint.state_dict)
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
            return ".".join(name.split(".")[:3])

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
        silent_loss = not self.loss_arguments
        self.network_arguments = theirs
        if not self.trainer.training or (self.data.inherits and silent_loss):
            self.loss_arguments = self._own_loss(header.get("loss"))
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
        assert self.reconstructor is not None
        batch = labelled.batch
        generated = self.reconstructor.generate(batch)
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

    def _teach(self, labelled: LabelledBatch) -> TrainingOutput:
        assert self.reconstructor is not None
        return self.reconstructor(labelled.batch)  # type: ignore[no-any-return]

    def train(self, mode: bool = True) -> ParticleFlow:
        """As of any module; a first stage that is not trained stays in evaluation mode."""
        super().train(mode)
        if self.reconstructor is not None:
            for name in self.reconstructor.first_stage_modules:
                self.reconstructor.get_submodule(name).eval()
        return self

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
