"""Which network, which tokeniser and which weights a run uses: decided once, before there is a trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from pflow.checkpoint.load import PREFIX, Checkpoint, check_weights, load_weights, read_checkpoint
from pflow.config import to_plain
from pflow.errors import ConfigError, InputError
from pflow.model.api import Reconstructor, describe
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig

Options = Mapping[str, Any]

PURPOSES = {"start": "begin with", "continue": "continue"}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ModelSpec:
    """Where a run takes its model from.

    The options of that model are the defaults. Options that a configuration sets take precedence, or are refused by
    name if they do not fit the weights. By `purpose`: ``fresh``: random weights, tokeniser fitted on the training
    files. ``start``: a new training begins with the weights of `checkpoint`; new parts of the network begin at random.
    ``continue``: its training is resumed.
    """

    purpose: Literal["fresh", "start", "continue"] = "fresh"
    checkpoint: Checkpoint | None = None

    @classmethod
    def resolve(cls, *, checkpoint: str | Path | None = None, start_from: str | Path | None = None) -> ModelSpec:
        """The spec of a fit.

        It continues the training of `checkpoint`, a file or the folder of its run, or begins with the model
        `start_from`. ConfigError: the training to continue has no checkpoint, or only weights are left.
        InputError: not a trained model that pflow can use.
        """
        if checkpoint is not None and (Path(checkpoint) / "config.yaml").is_file():
            folder, checkpoint = checkpoint, Path(checkpoint) / "last.ckpt"
            if not checkpoint.is_file():
                raise ConfigError(
                    f"{folder} has no last.ckpt to resume: begin it again, with pflow fit --config {folder}/config.yaml"
                )
        source = start_from if checkpoint is None else checkpoint
        if source is None:
            return cls()
        trained = read_checkpoint(source)
        check_weights(trained)  # its options are safe to be defaults: a network of their sizes is one of its weights
        if checkpoint is not None and not Path(checkpoint).is_file():
            raise ConfigError(
                f"{checkpoint} holds weights alone: to continue a training, --checkpoint takes its last.ckpt; "
                "--start-from begins a new one with them"
            )
        return cls(purpose="start" if checkpoint is None else "continue", checkpoint=trained)

    @property
    def tokeniser(self) -> Tokeniser | None:
        """The tokeniser of the trained model."""
        return None if self.checkpoint is None else self.checkpoint.header.tokeniser

    @property
    def provenance(self) -> Mapping[str, Any]:
        """How the trained model was made; empty without one."""
        return {} if self.checkpoint is None else self.checkpoint.header.provenance

    @property
    def resumed(self) -> str | None:
        """The checkpoint whose training is resumed."""
        return self.checkpoint.path if self.checkpoint and self.purpose == "continue" else None

    @property
    def began_with(self) -> dict[str, Any] | None:
        """Digest and provenance of the weights that the training began with; None: random ones."""
        if self.checkpoint is not None and self.purpose == "start":
            return {"sha256": self.checkpoint.digest, **self.provenance}
        return self.provenance.get("began_with")

    def defaults(self) -> dict[str, Any]:
        """Options of the trained model by their names on the command line."""
        if self.checkpoint is None:
            return {}
        recipe = to_plain(self.checkpoint.header.tokeniser.config)
        recipe.pop("readout")
        tokens = {f"data.{name}": value for name, value in recipe.items()}
        return {"model.reconstructor": dict(self.checkpoint.header.model), **tokens}

    def check_class(self, class_path: str | None) -> None:
        """Refuse a class of reconstructor that the weights are not of, with a ConfigError that names both."""
        if self.checkpoint is not None and class_path is not None:
            theirs = self.checkpoint.header.model["class_path"]
            if class_path not in (theirs, theirs.rpartition(".")[2]):
                self._refuse([f"model.reconstructor.class_path is {class_path}, but the weights have {theirs}"])

    def check_tokens(self, config: TokenConfig) -> None:
        """Refuse other tokens than the weights were trained on, with a ConfigError that names each option."""
        if self.tokeniser is not None:
            theirs = to_plain(self.tokeniser.config) | {"readout": config.readout}
            self._refuse(differences("data", to_plain(config), theirs))

    def check_network(self, reconstructor: Reconstructor) -> None:
        """Refuse a network with other options than the training to continue; names each."""
        if self.purpose != "start":
            self._refuse_network(reconstructor)

    def load_into(self, reconstructor: Reconstructor) -> list[str]:
        """Load the weights, if there are any and the trainer does not load them itself (a resumed training).

        Returns the parts that the checkpoint to start with does not have, which keep random weights. ConfigError: the
        weights do not fit options that were set; names them. InputError: they do not fit the checkpoint's own options.
        """
        if self.checkpoint is None or self.purpose == "continue":
            return []
        checkpoint = self.checkpoint
        new = _new_parts(reconstructor, checkpoint.state_dict)
        weights = {name: value for part in new.values() for name, value in part.items()} | checkpoint.state_dict
        try:
            load_weights(reconstructor, dataclasses.replace(checkpoint, state_dict=weights))
        except InputError:
            self._refuse_network(reconstructor)
            raise
        return sorted(new)

    def _refuse_network(self, reconstructor: Reconstructor) -> None:
        if self.checkpoint is not None:
            descriptions = (describe(reconstructor), self.checkpoint.header.model)
            ours, theirs = (description["init_args"].get("network", {}) for description in descriptions)
            self._refuse(differences("model.reconstructor.network", ours, theirs))

    def _refuse(self, differences: list[str]) -> None:
        if differences and self.checkpoint is not None:
            remedy = "; leave that out, or begin a new training" if self.purpose == "continue" else ""
            raise ConfigError(f"{self.checkpoint.path}, to {PURPOSES[self.purpose]}: {'; '.join(differences)}{remedy}")


def differences(group: str, ours: Options, theirs: Options, whose: str = "the weights") -> list[str]:
    """Options of a group that are not the same, in words."""
    changed = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    return [f"{group}.{name} is {ours[name]}, but {whose} have {theirs[name]}" for name in changed]


def _new_parts(reconstructor: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Sub-modules without any entry in `weights`: their weights under the names of a checkpoint, by module.

    An item of a list is no such part: a stack with other numbers of layers is another network.
    """
    new: dict[str, dict[str, Tensor]] = {}
    for name, value in reconstructor.state_dict(prefix=PREFIX).items():
        path = name.split(".")
        parents = (".".join(path[:n]) for n in range(2, len(path)))
        missing = next((group for group in parents if not any(key.startswith(f"{group}.") for key in weights)), None)
        if missing is None:
            continue
        if not missing.rpartition(".")[2].isdecimal():
            new.setdefault(missing.removeprefix(PREFIX), {})[name] = value
    return new
