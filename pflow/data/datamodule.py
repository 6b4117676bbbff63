"""The Lightning data module: which files are which split, and a tokeniser that has seen the training split only."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from pflow.checkpoint.format import Checkpoint, differences, read_checkpoint
from pflow.data.dataset import EventDataset, LabelledBatch
from pflow.data.files import Chunk, FileOptions, expand, read_chunks, split
from pflow.errors import ConfigError, nearest
from pflow.event.augment import Augmentation
from pflow.event.cells import Merge
from pflow.plain import to_plain
from pflow.tokens.recipe import HIT_FEATURES, Recipe
from pflow.tokens.tokeniser import Tokeniser

__all__ = ["ParticleFlowData"]

Paths = str | list[str] | None


class ParticleFlowData(pl.LightningDataModule):  # type: ignore[misc]
    """Event files for training, validation, test and prediction.

    Vocabularies and normalisers are fitted on the training files alone, in one streaming pass; with `use_checkpoint`
    they are taken from there. Files are read in chunks and never held whole.

    Parameters
    ----------
    train, val, test, predict
        Files of each split: paths or glob patterns. Only those that a command needs are looked at; files to predict
        need no truth.
    detector, schema, layout
        How to read them; by default found by looking (see `pflow.open_events`).
    on_error
        What to do with an entry that cannot be used: ``raise``, or ``skip``: leave it empty and warn.
    rule, e_min, order
        Truth rule (``stable``, ``calo``, ``entering``), least energy of a target in GeV, and order of the target
        sentence (``energy``, ``pt``, ``angle``, ``tracks_first``).
    hit_features, track_features, tracker_hit_features
        What the network reads of each (names in `pflow.tokens.features`); none: not part of the source.
    hit_energy_min
        Hits with at most this energy, GeV, are left out.
    coarse
        Whether to tell five particle classes apart only, instead of every PDG code in training.
    merge
        Sum hits into coarser cells, one token each: their size in mm in ECAL and HCAL (``ecal_mm``, ``hcal_mm``) and
        the number of ``layers`` summed together; none: a token for each hit.
    readout
        Whether the hits and tracks also go to the network in physical units, with the targets' shares of them; a
        network that points at them needs it.
    batch_size
        Most events in a batch.
    max_tokens
        Most source tokens in a batch, padding included; none: no limit.
    chunk
        Entries read at once.
    buffer
        Events shuffled together in training.
    num_workers
        Processes that read and encode; 0: the training process does it itself.
    seed
        Of the shuffling and the augmentation.
    repeat
        How often a training pass reads the files whose name matches a pattern, e.g. ``{"zqq*": 3}``; others once. Each
        time is augmented anew. What is fitted on the training files sees each of them once.
    augment
        What is done to training events, anew in every epoch (`pflow.event.augment.Augmentation`): ``rotate`` in phi,
        ``reflect`` in z, ``overlay`` of several events in one. Other splits are read as they are, and the tokeniser is
        fitted on the training events before any of this.
    """

    def __init__(
        self,
        *,
        train: Paths = None,
        val: Paths = None,
        test: Paths = None,
        predict: Paths = None,
        detector: str | None = None,
        schema: str | None = None,
        layout: str | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        rule: str = "stable",
        e_min: float = 0.1,
        order: str = "energy",
        hit_features: Sequence[str] = HIT_FEATURES,
        track_features: Sequence[str] = (),
        tracker_hit_features: Sequence[str] = (),
        hit_energy_min: float = 0.0,
        coarse: bool = False,
        merge: Merge | None = None,
        readout: bool = False,
        batch_size: int = 32,
        max_tokens: int | None = None,
        chunk: int = 256,
        buffer: int = 1024,
        num_workers: int = 0,
        seed: int = 1,
        repeat: dict[str, int] | None = None,
        augment: Augmentation | None = None,
    ) -> None:
        super().__init__()
        self.paths: dict[str, Paths] = {"train": train, "val": val, "test": test, "predict": predict}
        self.options = FileOptions(detector=detector, schema=schema, layout=layout, on_error=on_error)
        self.recipe = Recipe(
            rule=rule,
            e_min=e_min,
            order=order,
            hit_features=tuple(hit_features),
            track_features=tuple(track_features),
            tracker_hit_features=tuple(tracker_hit_features),
            hit_energy_min=hit_energy_min,
            coarse=coarse,
            merge=merge,
            readout=readout,
        )
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.chunk = chunk
        self.buffer = buffer
        self.num_workers = num_workers
        self.seed = seed
        self.repeat = dict(repeat or {})
        self.augmentation = augment
        self.tokeniser: Tokeniser | None = None
        self.checkpoint: Checkpoint | None = None
        self.begins = False
        self.inherits = False
        self._datasets: dict[str, EventDataset] = {}
        self._position = (0, 0)  # epoch and number of its batches seen, where a training goes on

    def use_checkpoint(self, path: str | Path, *, begin: bool = False, inherit: bool = False) -> None:
        """Take the tokeniser of a checkpoint, and let the module take its network; call it before the trainer runs.

        Lightning tells nobody of ``ckpt_path`` before the network must exist, so it has to be said here as well.

        Parameters
        ----------
        path
            A checkpoint, a folder of weights, or the name of a model that comes with pflow.
        begin
            Whether a fit is a new training that begins with its weights. Parts of the network that the configuration
            adds then begin at random.
        inherit
            Whether what the configuration says nothing of is the model's, as in a fit that begins with one or goes on
            with such a fit. Else tokens and network must be as configured.

        Raises
        ------
        InputError
            Not a checkpoint that pflow can use.
        """
        self.checkpoint = read_checkpoint(path)
        self.tokeniser = self.checkpoint.tokeniser
        self.begins = begin
        self.inherits = begin or inherit

    def setup(self, stage: str) -> None:
        """Find the files of a stage, and in fitting without a checkpoint fit the tokeniser on the training split.

        Raises
        ------
        ConfigError
            Files of the stage are not given, there is no tokeniser to use, several devices are asked for, the
            checkpoint to continue was trained on other tokens, or `repeat` names no training file.
        InputError
            A file or the checkpoint cannot be used.
        """
        if self.trainer is not None and self.trainer.world_size > 1:
            raise ConfigError("training runs on one device; set trainer.devices to 1")
        if stage == "fit" and self.checkpoint is not None:
            self._check_recipe(self.checkpoint.tokeniser.recipe)
        splits = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}[stage]
        chunks = {name: split(expand(self.paths[name], name), self.options, self.chunk) for name in splits}
        if self.tokeniser is None:
            if stage != "fit":
                raise ConfigError(f"'{stage!s}' needs a trained model: give its checkpoint with --ckpt_path")
            self.tokeniser = Tokeniser.fit(read_chunks(chunks["train"], self.options), self.recipe)
        if "train" in chunks:
            chunks["train"] = self._repeated(chunks["train"])
        for name, part in chunks.items():
            self._datasets[name] = self._dataset(name, part)

    def transfer_batch_to_device(
        self, batch: LabelledBatch, device: torch.device, dataloader_idx: int
    ) -> LabelledBatch:
        """Move the tensors; event numbers and flags stay on the host."""
        return batch._replace(batch=batch.batch.to(device, non_blocking=True))

    @property
    def purpose(self) -> str:
        """What a fit does with the checkpoint."""
        return "begin with" if self.begins else "continue"

    def go_on(self, epoch: int, batches: int) -> None:
        """Begin training in an epoch of which some batches were seen.

        Warns
        -----
        UserWarning
            With `num_workers`, whose batches come in no fixed order: the epoch begins anew.
        """
        if self.num_workers and batches:
            warnings.warn("with data.num_workers the epoch that was interrupted begins anew", stacklevel=2)
        self._position = epoch, 0 if self.num_workers else batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffling of the next training pass; what was seen of it is left out."""
        began, seen = self._position
        self._datasets["train"].set_epoch(epoch, skip=seen if epoch == began else 0)

    def n_events(self, name: str) -> int:
        """Number of events in a split that is set up."""
        return self._datasets[name].n_events

    def train_dataloader(self) -> DataLoader[LabelledBatch]:
        """Shuffled batches of similar lengths, in the order of the epoch, also when a checkpoint goes on within one."""
        if self.trainer is not None:
            self.set_epoch(max(self.trainer.current_epoch, self._position[0]))
        return self._loader("train")

    def val_dataloader(self) -> DataLoader[LabelledBatch]:
        """Batches in the order of the files, as for the others but training."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[LabelledBatch]:
        """Batches of the test files."""
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader[LabelledBatch]:
        """Batches of the files to predict, without truth."""
        return self._loader("predict")

    def _dataset(self, name: str, chunks: Sequence[Chunk]) -> EventDataset:
        assert self.tokeniser is not None
        return EventDataset(
            chunks,
            options=self.options,
            tokeniser=self.tokeniser,
            batch_size=self.batch_size,
            max_tokens=self.max_tokens,
            shuffle=name == "train",
            truth=name != "predict",
            buffer=max(self.buffer, self.batch_size),
            seed=self.seed,
            num_workers=self._workers(name),
            augmentation=self.augmentation if name == "train" else None,
        )

    def _repeated(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks of a pass, each as often as `repeat` says."""
        names = sorted({Path(chunk.path).name for chunk in chunks})
        times = dict.fromkeys(names, 1)
        for pattern, number in self.repeat.items():
            matched = [name for name in names if fnmatch(name, pattern)]
            if not matched:
                raise ConfigError(
                    f"repeat: no training file is called '{pattern}'", suggestions=nearest(pattern, names)
                )
            if number < 1:
                raise ConfigError(f"repeat: '{pattern}' {number} times; expected at least 1")
            times.update(dict.fromkeys(matched, number))
        return [chunk for chunk in chunks for _ in range(times[Path(chunk.path).name])]

    def _workers(self, name: str) -> int:
        """Several workers interleave their batches, and what is written must stay in order."""
        return min(self.num_workers, 1) if name == "predict" else self.num_workers

    def _loader(self, name: str) -> DataLoader[LabelledBatch]:
        return DataLoader(
            self._datasets[name],
            batch_size=None,
            num_workers=self._workers(name),
            pin_memory=torch.cuda.is_available(),
        )

    def _check_recipe(self, trained: Recipe) -> None:
        silent = to_plain(Recipe()) if self.inherits else {}
        differing = differences(to_plain(self.recipe), to_plain(trained), silent=silent)
        if differing:
            raise ConfigError(f"the checkpoint to {self.purpose} was trained with {'; '.join(differing)}")
        self.recipe = trained
