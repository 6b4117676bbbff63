import dataclasses
import os
import re
import shutil
from types import SimpleNamespace

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError, InputError
from pflow.event.augment import Augmentation, Overlay
from pflow.event.events import BadEntriesWarning, ImplausibleWarning
from pflow.event.merge import Merge
from pflow.event.move import Variation
from pflow.event.scales import measure
from pflow.io.flat import write_events
from pflow.io.open import EventFile, read_events
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig


@pytest.fixture
def data(train_files, val_file) -> ParticleFlowData:
    return ParticleFlowData(train=train_files, val=val_file, batch_size=8, chunk_size=16)


def test_the_seed_is_lightnings_unless_it_is_given(train_files, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    assert [ParticleFlowData(train=train_files, **given).seed for given in ({}, {"seed": 5})] == [3, 5]


def test_a_fit_after_a_resumed_one_reads_all_and_a_finished_epoch_is_over(data):
    data._resumed = (3, 2)
    data.setup("fit")
    assert data._resumed == (-1, 0)
    # Lightning has counted the epoch: a checkpoint now, as of trainer.save_checkpoint after the fit, has none of it.
    current = SimpleNamespace(processed=2, ready=2)
    loop = SimpleNamespace(batch_idx=4, epoch_progress=SimpleNamespace(current=current))
    data.trainer = SimpleNamespace(current_epoch=2, fit_loop=loop, is_last_batch=True, world_size=1)
    assert (data.state_dict()["epoch"], data.state_dict()["n_batches"]) == (2, 0)


def test_the_tokeniser_is_fitted_on_the_training_split_alone(data, train_files):
    data.setup("fit")
    alone = Tokeniser.fit([read_events(path) for path in train_files])
    assert data.tokeniser.n_events == 70
    np.testing.assert_allclose(data.tokeniser.energy.mean, alone.energy.mean, rtol=1e-12)
    np.testing.assert_allclose(data.tokeniser.scales["hits"].mean, alone.scales["hits"].mean, rtol=1e-9)
    # The validation events have a hundred times the energy: any one of them would show.
    assert 10 ** data.tokeniser.energy.mean[0] < 10
    energies = [np.asarray(event.energy).sum() for path in train_files for event in read_events(path).hits]
    assert data.tokeniser.sample.max_energy == pytest.approx(max(energies))


def test_events_are_checked_by_the_truth_rule_of_the_model(data, train_files, monkeypatch):
    rules = []

    def noted(events, *, targets):
        rules.append(targets["rule"])
        return measure(events, targets=targets)

    monkeypatch.setattr("pflow.data.datamodule.measure", noted)
    data.tokeniser = Tokeniser.fit([read_events(path) for path in train_files], TokenConfig(rule="calo"))
    data.setup("fit")
    assert set(rules) == {"calo"}


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_files_of_every_stage_are_checked(make_photons, tmp_path, stage):
    events, path = make_photons(4), str(tmp_path / "mev.root")
    hits = ak.with_field(events.hits, 1000.0 * events.hits.energy, "energy")
    write_events(path, dataclasses.replace(events, hits=hits))
    with pytest.warns(ImplausibleWarning, match=r"mev\.root: hits have 1\d+\.\d+ times the energy of stable"):
        ParticleFlowData(val=path, test=path, predict=path).setup(stage)


def test_training_is_shuffled_and_may_read_a_file_more_than_once_and_validation_is_in_order(data):
    """The first file has 40 events."""
    data.repeat = {"a.root": 3}
    data.setup("fit")
    seen = np.concatenate([batch.event for batch in data.train_dataloader()]).tolist()
    assert (len(seen), data.n_events("train"), data.tokeniser.n_events) == (150, 150, 70)
    assert data.n_events("train", distinct=True) == 70
    assert sorted(seen) == sorted(3 * [*range(40)] + [*range(40, 70)])
    assert seen != sorted(seen)
    assert np.concatenate([batch.event for batch in data.val_dataloader()]).tolist() == list(range(1000, 1010))
    assert data.n_events("val") == 10


def test_files_are_taken_once_and_none_is_an_error(data, train_files):
    """The tokeniser is fitted on as many events as asked for."""
    data.paths["train"], data.tokeniser_events = [train_files[1], *train_files], 24
    data.setup("fit")
    assert (data.n_events("train"), data.tokeniser.n_events) == (70, 24)
    data.paths["val"] = []
    with pytest.raises(ConfigError, match=r"give --data\.val FILE"):
        data.setup("fit")


def test_a_pattern_that_matches_no_file_is_an_error(data):
    data.repeat = {"zqq*": 3}
    with pytest.raises(ConfigError, match=r"'zqq\*'"):
        data.setup("fit")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("batch_size", 2.5, "a whole number of at least 1, found 2.5"),
        ("batch_size", True, "a whole number of at least 1"),
        ("max_tokens", 0, "a whole number of at least 1"),
        ("chunk_size", "16", "a whole number of at least 1"),
        ("tokeniser_events", 0, "a whole number of at least 1"),
        ("buffer", 2.5, "a whole number of at least 0"),
        ("num_workers", -1, "a whole number of at least 0"),
        ("seed", -1, "a whole number of at least 0"),
        ("repeat", 3, "whole numbers of at least 1 by"),
        ("repeat", {"*": 0}, "whole numbers of at least 1 by"),
    ],
)
def test_numbers_of_events_and_the_like_that_cannot_work_are_errors(option, value, expected):
    with pytest.raises(ConfigError, match=f"data: {option} must be {expected}"):
        ParticleFlowData(**{option: value})


def test_validation_files_that_are_training_files_are_said_and_so_are_links_and_copies(train_files, val_file, tmp_path):
    os.symlink(train_files[0], link := str(tmp_path / "val.root"))
    copied = shutil.copy(train_files[1], tmp_path / "copy.root")
    same = [train_files[0], link, str(copied)]
    with pytest.warns(UserWarning, match=re.escape(f"data.val: {', '.join(same)} is also in data.train")):
        ParticleFlowData(train=train_files, val=[*same, val_file]).setup("fit")


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(
    ("truth", "message"), [(False, "needs truth particles.*; the file holds none"), (True, "has no target particles")]
)
def test_files_without_targets_are_refused_before_the_training(data, make_photons, tmp_path, split, truth, message):
    """Also where a trained model brings the tokeniser. Of several files each must have truth, and one targets."""
    data.tokeniser = Tokeniser.fit([make_photons(12)])
    events, path = make_photons(12, energy=0.05), str(tmp_path / "bad.root")
    write_events(path, events if truth else events.without_truth())
    data.paths[split] = [path] if truth else [*data.paths["train"], path]
    with pytest.raises(InputError, match=rf"bad\.root\b.*{message}"):
        data.setup("fit")


def test_batches_have_a_readout_where_the_model_needs_it(data):
    data.setup("fit")
    data.use_readout(True)
    for loader in (data.train_dataloader(), data.val_dataloader()):
        batch = next(iter(loader)).batch
        assert torch.equal(batch.readout.mask, batch.hits.mask)
        # A photon's hits are all its own.
        assert torch.equal(batch.target.hit_fraction[:, 0], batch.readout.mask.float())
    data.use_readout(False)
    assert next(iter(data.val_dataloader())).batch.readout is None


@pytest.mark.filterwarnings("ignore:.*events have up to 883 GeV")  # the two files are not of one sample
def test_training_alone_is_augmented_and_the_tokeniser_fitted_before(train_files, val_file):
    def data(**more) -> ParticleFlowData:
        made = ParticleFlowData(train=train_files, val=val_file, batch_size=8, chunk_size=16, **more)
        made.setup("fit")
        return made

    plain, augmented = data(), data(augment=Augmentation(rotate=True, overlay=Overlay(frequencies=[1, 1, 1])))
    assert augmented.tokeniser == plain.tokeniser
    for one, other in zip(plain.val_dataloader(), augmented.val_dataloader(), strict=True):
        assert torch.equal(one.batch.hits.features, other.batch.hits.features)
    n_targets = [sum(int(b.batch.target.mask.sum()) for b in each.train_dataloader()) for each in (plain, augmented)]
    assert n_targets[0] == 70
    assert n_targets[1] > 100


def test_training_goes_on_without_what_cannot_be_read_and_says_so(train_files, val_file, tmp_path, monkeypatch):
    def decode(file, start, stop, truth):
        if start == 16 < stop:
            raise InputError("damaged", file=file.path)
        return real(file, start, stop, truth)

    (tmp_path / "bad.root").write_bytes(b"")
    train = [str(tmp_path / "bad.root"), *train_files]
    data = ParticleFlowData(train=train, val=val_file, batch_size=8, chunk_size=16, on_error="skip")
    with pytest.warns(BadEntriesWarning, match=r"1 of 3 files were left out"):
        data.setup("fit")
    real = EventFile._decode
    monkeypatch.setattr(EventFile, "_decode", decode)
    with pytest.warns(BadEntriesWarning, match="entries 16 to 31 were left out"):
        seen = [number for batch in data.train_dataloader() for number in batch.event.tolist()]
    assert sorted(seen) == [*range(16), *range(32, 70)]
    assert data._datasets[0].refused


def test_what_another_rank_skipped_is_known_on_this_one(data, monkeypatch):
    """A fit exits with the code of its first rank, which may have read good entries only."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda anywhere, *_, **__: anywhere.fill_(1))
    data._group = object()
    with pytest.warns(BadEntriesWarning, match="see the warnings of the other devices"):
        data.teardown("fit")


def test_a_model_for_any_detector_is_trained_on_files_of_several(sample_dir):
    files = [str(sample_dir / name) for name in ("zqq_test_small.root", "cld_multi_test_small.root")]
    data = ParticleFlowData(
        train=files,
        val=files[:1],
        hit_features=["log_energy", "depth"],
        merge=Merge(ecal_mm=20, hcal_mm=90, depth=8.0),
        geometry=True,
        augment=Augmentation(detector=Variation(scale=(0.5, 2.0))),
        batch_size=4,
    )
    with pytest.warns(UserWarning, match="is also in data.train"):
        data.setup("fit")
    sample = data.tokeniser.sample
    assert sample.detectors == ("cld", "ild_g4")
    assert sample.measures["radius of the ECAL [mm]"] == (1805.0 / 2, 2 * 2150.0)
    assert sample.measures["field [T]"] == (2.0 / 2, 2 * 3.5)
    assert sample.b_field is None
    assert any(len(set(batch.path)) == 2 for batch in data.train_dataloader())
    assert data.tokeniser.detector.name == "ild_g4"
    began = SimpleNamespace(tokeniser=data.tokeniser, began_with={"sha256": ""})  # trained further on one of them
    data = ParticleFlowData(train=files[1], val=files[1])
    data.trainer = SimpleNamespace(lightning_module=began, world_size=1)
    with pytest.warns(UserWarning, match="is also in data.train"):
        data.setup("fit")
    assert (data.tokeniser.detector.name, data.tokeniser.sample.detectors) == ("cld", ("cld", "ild_g4"))
    with pytest.raises(ConfigError, match="two detectors, 'ild_g4' and 'cld'"):
        ParticleFlowData(train=files, val=files[:1]).setup("fit")
