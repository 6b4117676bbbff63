"""The Lightning data module: which files are which split, and a tokeniser that has seen the training split only."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import distributed

from pflow.config import from_plain, to_plain
from pflow.data.dataset import (
    Chunk,
    EventDataset,
    FileOptions,
    LabelledBatch,
    StepLoader,
    StopRequest,
    read_chunks,
    spread_sample,
    survey,
)
from pflow.errors import ConfigError, InputError, PflowError, check_choice, check_fields, check_options, nearest
from pflow.event.augment import Augmentation
from pflow.event.checks import compare, warn_of
from pflow.event.events import BadEntriesWarning
from pflow.event.scales import SampleScales, Scales, measure
from pflow.io.open import matching
from pflow.physics.detector import Detector
from pflow.physics.geometry import measures
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig, targets_of

Paths = str | list[str] | None

SPLITS = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}
"""Files that each of Lightning's stages reads."""
FEW = 8  # entries at the beginning of each file in which targets are looked for
SAMPLE_EVENTS = 1000  # training events from which `SampleScales` are taken
CHECKED_EVENTS = 100  # events of a split that are checked, except for the training files of a new training


class ParticleFlowData(pl.LightningDataModule):  # type: ignore[misc]
    """Event files for training, validation, test and prediction.

    The tokeniser is the model's, if it is trained; else it is fitted on a sample of the training files alone. Files are
    read in chunks and never held whole. It has the parameters of `TokenConfig`, too.

    Parameters
    ----------
    train
        Files to train on: paths or glob patterns.
    val
        Files to validate on, in the same way.
    test
        Files to test on. Only the files of a stage are opened.
    predict
        Files whose particles are to be predicted; they need no truth.
    detector
        Built-in name or YAML file; default: detected from the file.
    schema
        File schema; default: detected from the file.
    layout
        Table from branches to fields, for flat files of your own.
    truth_tracks
        Make the tracks of EDM4hep files that have none from their Monte Carlo particles.
    on_error
        What to do with an entry or file that cannot be used: ``raise``, or ``skip``: leave it out and warn.
    batch_size
        Most events in a batch, on every device.
    max_tokens
        Most source tokens in a batch, padding included; none: no limit.
    chunk_size
        Entries read at once; up to twice as many, to end where a file's baskets end.
    buffer
        Events shuffled together in training.
    num_workers
        Processes that read and encode batches, for each device; 0: the training process does it itself.
    seed
        Of the shuffling and the augmentation; default: that of Lightning's ``seed_everything``, else 1.
    tokeniser_events
        Events that the tokeniser (normalisation and vocabulary) is fitted on, in short runs spread evenly over all
        training files; all, where there are no more.
    repeat
        How often a training pass reads the files whose name matches a pattern, e.g. ``{"zqq*": 3}``; others once; the
        last pattern that matches counts. Each reading draws another augmentation. The tokeniser is fitted on each event
        once.
    augment
        Changes of training events, drawn again in every epoch (`pflow.event.augment.Augmentation`): ``rotate`` in
        phi, ``reflect`` in z, ``overlay`` of several events, ``disturb`` as a detector differs from its simulation,
        ``detector``: moved into another detector.
        Other splits are read as they are, and the tokeniser is fitted on the training events before any of this.
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
        truth_tracks: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        batch_size: int = 32,
        max_tokens: int | None = None,
        chunk_size: int = 256,
        buffer: int = 1024,
        num_workers: int = 0,
        seed: int | None = None,
        tokeniser_events: int = 20_000,
        repeat: dict[str, int] | None = None,
        augment: Augmentation | None = None,
        **tokens: Any,
    ) -> None:
        super().__init__()
        check_fields(
            tokens, {*vars(TokenConfig()), *inspect.signature(ParticleFlowData).parameters}, "ParticleFlowData"
        )
        given = {"train": train, "val": val, "test": test, "predict": predict}
        self.paths = {name: str(paths) if isinstance(paths, str | Path) else paths for name, paths in given.items()}
        # The names given are kept: a trained model is compared with these options, not with defaults.
        self.token_config, self._given = TokenConfig(**tokens, readout=False), frozenset(tokens)
        self.options = FileOptions(
            detector=detector,
            schema=schema,
            layout=layout,
            truth_tracks=truth_tracks,
            on_error=on_error,
            expected=None,  # a sample is checked in `_measure`; epochs read the same events again and again
        )
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.chunk_size = chunk_size
        self.buffer = buffer
        self.num_workers = num_workers
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 1)) if seed is None else seed
        self.tokeniser_events = tokeniser_events
        self.repeat = {} if repeat is None else repeat

        def whole(n: object, least: int = 1) -> bool:  # by type: True is an int, too
            return type(n) is int and n >= least

        numbers = "batch_size", "chunk_size", "tokeniser_events"
        check_options(self, "data", "a whole number of at least 1", whole, *numbers)
        check_options(self, "data", "a whole number of at least 1", lambda n: n is None or whole(n), "max_tokens")
        numbers = "buffer", "num_workers", "seed"
        check_options(self, "data", "a whole number of at least 0", lambda n: whole(n, 0), *numbers)
        times = "whole numbers of at least 1 by the names of files"
        check_options(self, "data", times, lambda given: all(map(whole, {**given}.values())), "repeat")
        self.augmentation = None if augment is None else from_plain(Augmentation, augment, "augment")
        self.tokeniser: Tokeniser | None = None
        self._chunks: dict[str, list[Chunk]] = {}
        self._train: StepLoader | None = None
        self._left_out: list[str] = []
        self._datasets: list[EventDataset] = []
        self._resumed = (-1, 0)  # the epoch that a resumed training begins in, and the batches that it has seen of it
        self._group: Any = None  # the ranks, where there are several
        self.stop = StopRequest()
        """Whether to stop after the present batch; of several ranks, together."""

    def setup(self, stage: str) -> None:
        """Find the files of a stage; before a fit, fit the tokeniser on the training files unless the model has one."""
        check_choice(stage, tuple(SPLITS), "stage")
        if stage == "fit":
            self._resumed = (-1, 0)  # of an earlier fit with the same data module
        if self._n_ranks == 1:
            self._chunks |= self._set_up(stage)
            return
        # One rank inspects the files for all. All ranks raise its error; otherwise they would never return.
        message: tuple[dict[str, list[Chunk]], FileOptions, Tokeniser | None] | PflowError | None = None
        if self.trainer.is_global_zero:
            try:
                message = self._set_up(stage), self.options, self.tokeniser  # in this order: it makes the others
            except PflowError as error:
                message = error
        message = self.trainer.strategy.broadcast(message)
        if isinstance(message, PflowError):
            raise message
        assert message is not None  # the first rank has sent it
        chunks, self.options, self.tokeniser = message
        self._chunks |= chunks

    def _set_up(self, stage: str) -> dict[str, list[Chunk]]:
        """The chunks of each split of a stage; makes the tokeniser of a fit."""
        chunks: dict[str, list[Chunk]] = {}
        for name in SPLITS[stage]:
            given = self.paths[name]
            if not given:
                raise ConfigError(f"no {name} files are given: give --data.{name} FILE (in Python: {name}=FILE)")
            # A file that two patterns match is read once.
            paths = list(dict.fromkeys(matching(given)))
            chunks[name], self.options = survey(paths, self.options, self.chunk_size)
            self._left_out += [path for path in paths if path not in self.options.known]
        model = None if self.trainer is None else self.trainer.lightning_module
        trained, begins = getattr(model, "tokeniser", None), getattr(model, "began_with", None) is not None
        trained = trained or self.tokeniser
        if trained is not None:
            self.use(trained)
        expected = None if trained is None else trained.sample
        if stage != "fit":  # the weights, and the tokeniser with them, may be loaded later
            for name, of_split in chunks.items():
                self._measure(of_split, CHECKED_EVENTS, expected, truth=name != "predict")
            return chunks
        repeated = self._repeated(chunks["train"])
        if self.tokeniser is None:
            sample = spread_sample(chunks["train"], self.tokeniser_events)
            events = read_chunks(sample, self.options)
            self.tokeniser = Tokeniser.fit(events, self.token_config, on_error=self.options.on_error)
        for name, of_split in chunks.items():
            _check_targets(name, of_split, self.options, self.tokeniser.config)
        train, val = (dict.fromkeys(chunk.path for chunk in of_split) for of_split in chunks.values())
        # By UUID, or else by real path: a copy of a training file, or a link to it, is the same file.
        same = {path: self.options.uuids[path] or os.path.realpath(path) for path in (*train, *val)}
        if common := [path for path in val if same[path] in map(same.get, train)]:
            why = "what was learnt by heart looks good there"
            warnings.warn(f"data.val: {', '.join(common)} is also in data.train: {why}", stacklevel=2)
        new = trained is None or begins
        if "val" not in self._chunks:  # else a validation before the training has looked at them
            self._measure(chunks["val"], CHECKED_EVENTS, expected)
        # The scales of a new training are kept with the model; otherwise the events are only checked.
        measured = self._measure(chunks["train"], SAMPLE_EVENTS if new else CHECKED_EVENTS, expected)
        if new:
            scales = measured.sample()
            if self.tokeniser.config.geometry:
                scales = self._of_any_detector(scales, train, None if trained is None else trained.sample)
                # As of a new one, for which `pflow export` makes graphs by itself.
                detector = self.options.known[next(iter(train))].detector
                assert isinstance(detector, Detector)  # detected in `survey`
                self.tokeniser = dataclasses.replace(self.tokeniser, detector=detector)
            self.tokeniser = dataclasses.replace(self.tokeniser, sample=scales)
        # Not before: the tokeniser and the scales see each event once.
        return chunks | {"train": repeated}

    def use(self, tokeniser: Tokeniser) -> None:
        """Take the tokeniser of a trained model.

        ConfigError: other tokens were asked for. InputError: a file is of a detector that the model does not read.
        """
        asked = {name: value for name, value in to_plain(self.token_config).items() if name in self._given}
        if changed := differences("data", asked, to_plain(tokeniser.config)):
            raise ConfigError(f"other tokens than the model's: {'; '.join(changed)}")
        for path, known in self.options.known.items():
            if isinstance(known.detector, Detector) and (differing := tokeniser.other_geometry(known.detector)):
                alone = f"the model reads detector '{tokeniser.detector.name}' alone"
                remedy = "'general' reads any detector"
                message = f"{alone}, and this one differs in {', '.join(differing)}: {remedy}"
                raise InputError(message, file=path, field="detector")
        self.tokeniser = tokeniser

    def _measure(
        self, chunks: Sequence[Chunk], n_events: int, expected: SampleScales | None, *, truth: bool = True
    ) -> Scales:
        """Scales of about `n_events`, the same number from each file; warns of a file that fails a check.

        `truth`: also whether targets have the energy in hits.
        """
        config = self.token_config if self.tokeniser is None else self.tokeniser.config
        targets = config.chosen_by if truth else None
        of_file: dict[str, list[Chunk]] = {}
        for chunk in chunks:
            of_file.setdefault(chunk.path, []).append(chunk)
        total = Scales()
        for path, listed in of_file.items():
            # At least one event of each file, however many files there are.
            sample = spread_sample(listed, max(1, n_events // len(of_file)))
            events = read_chunks(sample, self.options)
            scales = sum((measure(some, targets=targets) for some in events), Scales())
            warn_of(compare(scales, expected), path)
            total += scales
        return total

    def _of_any_detector(self, scales: SampleScales, paths: Iterable[str], before: SampleScales | None) -> SampleScales:
        """Scales that all detectors share, and what the detectors of the training files and of earlier ones cover."""
        detectors = [detector for path in paths if isinstance(detector := self.options.known[path].detector, Detector)]
        ranges = measures(*detectors)
        if self.augmentation is not None and self.augmentation.detector is not None:
            ranges = self.augmentation.detector.widened(ranges)
        names = [detector.name for detector in detectors]
        if before is not None:
            names += before.detectors
            for name, (low, high) in before.measures.items():
                smallest, largest = ranges.get(name, (low, high))
                ranges[name] = min(low, smallest), max(high, largest)
        trails = {name: value for name, value in scales.trails.items() if name == "response"}
        return dataclasses.replace(
            scales, b_field=None, trails=trails, detectors=tuple(sorted(set(names))), measures=ranges
        )

    def use_readout(self, readout: bool) -> None:
        """Whether batches hold the hits and tracks in physical units, with the targets' fractions of them."""
        assert self.tokeniser is not None  # after `setup`
        config = dataclasses.replace(self.tokeniser.config, readout=readout)
        self.tokeniser = dataclasses.replace(self.tokeniser, config=config)

    def transfer_batch_to_device(
        self, batch: LabelledBatch, device: torch.device, dataloader_idx: int
    ) -> LabelledBatch:
        """Move the tensors; event numbers and flags stay on the host."""
        return batch._replace(batch=batch.batch.to(device, non_blocking=True))

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume within an epoch: the number of batches seen, and the settings that make them."""
        if self.trainer is None or not self._chunks.get("train"):
            return {}
        epoch, n_batches = self.trainer.current_epoch, self.trainer.fit_loop.batch_idx + 1
        # Nothing of this epoch is left: a resumed training begins with the next one.
        progress = self.trainer.fit_loop.epoch_progress.current
        if progress.processed == progress.ready:  # after the end of a fit, Lightning has counted the epoch
            n_batches = 0
        elif self.trainer.is_last_batch:
            epoch, n_batches = epoch + 1, 0
        return {"epoch": epoch, "n_batches": n_batches, "batching": self._batching()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume within the epoch of a checkpoint, by the batches that it has not seen, unless the epoch has others."""
        if "train" not in self._chunks:  # no fit
            return
        same = state.get("batching") in (self._batching(), self._batching(by_name=True))  # of earlier versions
        if not same:
            what = "training files, sizes of batches, devices or workers differ from the checkpoint's"
            warnings.warn(f"{what}: the rest of its epoch is reshuffled", stacklevel=2)
        self._resumed = (int(state["epoch"]), int(state["n_batches"]) if same else 0)

    def _batching(self, *, by_name: bool = False) -> str:
        """Digest of what decides which batches an epoch has, wherever the files are; `by_name`: or what they hold."""
        names = {path: [Path(path).name, *([] if by_name else [uuid])] for path, uuid in self.options.uuids.items()}
        chunks = [(*names[chunk.path], chunk.start, chunk.stop) for chunk in self._chunks["train"]]
        sizes = (self.batch_size, self.max_tokens, self.buffer, self.num_workers, self._n_ranks, self.seed)
        return hashlib.sha256(json.dumps([chunks, sizes]).encode()).hexdigest()

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffling of the next training pass, without the batches that a resumed training has seen."""
        if self._train is not None:
            self._train.dataset.epoch = epoch
            self._train.skip = self._resumed[1] if epoch == self._resumed[0] else 0

    def uuids(self, name: str) -> list[str]:
        """UUIDs of the files of a split that is set up, of those that have one."""
        return sorted({self.options.uuids[chunk.path] for chunk in self._chunks[name]} - {""})

    def n_events(self, name: str, *, distinct: bool = False) -> int:
        """Number of events in a pass over a split that is set up; `distinct` counts those read several times once."""
        chunks = self._chunks[name]
        return sum(map(len, set(chunks) if distinct else chunks))

    def train_dataloader(self) -> StepLoader:
        """Shuffled batches of similar lengths, in the order of the epoch."""
        self._train = self._loader("train")
        self._train.begin = self._begin_epoch
        self._begin_epoch()
        return self._train

    def _begin_epoch(self) -> None:
        """Shuffle for the trainer's epoch, with a module of any class; without a trainer, `set_epoch` does it."""
        assert self._train is not None  # whose pass it is
        now = self._train.dataset.epoch if self.trainer is None else self.trainer.current_epoch
        # Lightning asks for the batches of a resumed training before it knows the epoch.
        self.set_epoch(max(now, self._resumed[0]))

    def val_dataloader(self) -> StepLoader:
        """Batches of the validation files, in their order."""
        return self._loader("val")

    def test_dataloader(self) -> StepLoader:
        """Batches of the test files, in their order."""
        return self._loader("test")

    def predict_dataloader(self) -> StepLoader:
        """Batches of the files to predict, in their order and without truth."""
        return self._loader("predict")

    def teardown(self, stage: str) -> None:
        """Repeat here what workers warned of, and tell each rank what any of them skipped."""
        refused = any(dataset.refused for dataset in self._datasets)
        anywhere = torch.tensor(int(refused))
        if self._group is not None:
            distributed.all_reduce(anywhere, distributed.ReduceOp.MAX, group=self._group)
        if self._left_out:
            names = "".join(f"\n  {path}" for path in self._left_out)
            warnings.warn(f"files that cannot be used were left out:{names}", BadEntriesWarning, stacklevel=2)
        # Without workers, a rank has already warned of its own entries.
        if bool(anywhere) and (self.num_workers or not refused):
            where = "data.num_workers processes" if refused else "other devices"
            message = f"entries that cannot be used were left empty, see the warnings of the {where}"
            warnings.warn(message, BadEntriesWarning, stacklevel=2)

    def _loader(self, name: str) -> StepLoader:
        trained = None if self.trainer is None else getattr(self.trainer.lightning_module, "tokeniser", None)
        # The weights, and the tokeniser with them, may have been loaded after `setup`.
        if trained is not None and trained is not self.tokeniser:
            self.use(trained)
        if self.tokeniser is None:
            text = "there is no tokeniser: name a trained model (--checkpoint, ckpt_path), or train one"
            raise ConfigError(f"{text}; of a data module by itself: data.use(module.tokeniser)")
        # With Lightning's overfit_batches each epoch has the same ones.
        shuffle = name == "train" and not (self.trainer is not None and self.trainer.overfit_batches)
        dataset = EventDataset(
            self._chunks[name],
            options=self.options,
            tokeniser=self.tokeniser,
            batch_size=self.batch_size,
            max_tokens=self.max_tokens,
            shuffle=shuffle,
            buffer=max(self.buffer, self.batch_size),
            seed=self.seed,
            # Of several workers the batches would come in turn, not in the order of the files.
            num_workers=min(self.num_workers, 1) if name == "predict" else self.num_workers,
            rank=0 if self._n_ranks == 1 else self.trainer.global_rank,
            n_ranks=self._n_ranks,
            augmentation=self.augmentation if name == "train" else None,
            truth=name != "predict",
        )
        self._datasets.append(dataset)
        # gloo works on the CPU: ranks exchange the sizes of batches without waiting for the GPU.
        if self._n_ranks > 1 and self._group is None:
            self._group = distributed.new_group(backend="gloo")
        return StepLoader(dataset, self.stop, self._group)

    def _repeated(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks of a pass, each as often as `repeat` says."""
        names = sorted({Path(chunk.path).name for chunk in chunks})
        times = dict.fromkeys(names, 1)
        for pattern, number in self.repeat.items():
            matched = [name for name in names if fnmatch(name, pattern)]
            if not matched:
                message = f"repeat: no training file is called '{pattern}'"
                raise ConfigError(message, suggestions=nearest(pattern, names))
            times.update(dict.fromkeys(matched, number))
        return [chunk for chunk in chunks for _ in range(times[Path(chunk.path).name])]

    @property
    def _n_ranks(self) -> int:
        """Number of processes that train together."""
        return 1 if self.trainer is None else int(self.trainer.world_size)


def differences(
    group: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], whose: str = "the weights"
) -> list[str]:
    """Options of a group that differ, in words."""
    changed = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    return [f"{group}.{name} is {ours[name]}, but {whose} have {theirs[name]}" for name in changed]


def _check_targets(name: str, chunks: Sequence[Chunk], options: FileOptions, config: TokenConfig) -> None:
    """An InputError for a file without truth, or files without any target: before the training, not after an epoch."""

    def n_targets(some: Sequence[Chunk]) -> Iterator[int]:
        for events in read_chunks(some, options):
            yield int(targets_of(events, config).counts.sum())

    first = [dataclasses.replace(chunk, stop=min(chunk.stop, FEW)) for chunk in chunks if chunk.start == 0]
    # All entries are read only if the first ones have no target, and only up to the first one that has.
    if sum(n_targets(first)) == 0 and not any(n_targets(chunks)):
        rule = f"data.rule {config.rule} and data.e_min {config.e_min:g} GeV"
        raise InputError(f"data.{name} has no target particles under {rule}", file=chunks[0].path)
