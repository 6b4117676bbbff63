import pytest

from pflow.data.datamodule import ParticleFlowData
from pflow.data.loader import StepLoader, StopRequest


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning", "ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_resumed_training_has_seen_is_skipped(train_files, val_file, workers):
    data = ParticleFlowData(train=train_files, val=val_file, batch_size=8, chunk_size=16, num_workers=workers)
    data.setup("fit")
    loader = data.train_dataloader()
    batches = [batch.event.tolist() for batch in loader]
    assert len(batches) == len(loader)
    data.load_state_dict({"epoch": 0, "n_batches": 3, "batching": data._batching()})
    assert [batch.event.tolist() for batch in data.train_dataloader()] == batches[3:]
    data.set_epoch(1)
    assert len([*loader]) == len(batches)


def test_an_epoch_of_other_batches_is_shuffled_anew(train_files, val_file):
    data = ParticleFlowData(train=train_files, val=val_file, batch_size=8, chunk_size=16)
    data.setup("fit")
    state = {"epoch": 4, "n_batches": 3, "batching": data._batching()}
    data.batch_size = 7
    with pytest.warns(UserWarning, match="the rest of its epoch is shuffled anew"):
        data.load_state_dict(state)
    loader = data.train_dataloader()
    assert (loader.dataset.epoch, len([*loader])) == (4, 10)


def test_a_signal_is_agreed_with_the_next_batch(train_files, val_file):
    data = ParticleFlowData(train=train_files, val=val_file, batch_size=8)
    data.setup("fit")
    stop = StopRequest()
    batches = iter(StepLoader(data.train_dataloader().dataset, stop))
    next(batches)
    stop.signal = 15
    assert stop.agreed == 0
    next(batches)
    assert stop.agreed == 15
