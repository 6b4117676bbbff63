import dataclasses
import hashlib
import json
import zipfile

import pytest
import safetensors.torch
import torch

from pflow.checkpoint import FORMAT, KEY, PREFIX, Header, load_model, load_weights, read_checkpoint, write_weights
from pflow.config import shipped_models, weights_dir
from pflow.errors import InputError
from pflow.model.api import describe
from pflow.model.pointing import PointingNetworkConfig, PointingReconstructor


@pytest.fixture(scope="session")
def header(model) -> Header:
    return Header(
        version="1.2.3",
        tokeniser=model.tokeniser,
        model=describe(model.reconstructor),
        provenance={"train": ["a.root"]},
    )


@pytest.fixture
def save(model, header, save_model, tmp_path):
    """Write a checkpoint of the small model as a fit does, with some keys changed; None leaves one out."""

    def write(**changes):
        keys = {"optimizer_states": [torch.ones(9)], **changes}
        return save_model(model, tmp_path / "model.ckpt", header.provenance, **keys)

    return write


@pytest.fixture
def save_header(save, header):
    """Write a checkpoint with some fields of the header changed; None leaves one out."""

    def write(**changes):
        content = {**header.to_dict(), **changes}
        return save(**{KEY: json.dumps({key: value for key, value in content.items() if value is not None})})

    return write


@pytest.fixture
def folder(save, tmp_path):
    write_weights(save(), tmp_path / "toy")
    return tmp_path / "toy"


def test_a_file_and_a_folder_of_weights_are_the_same_model(save, folder, header, model):
    path, before = save(), torch.get_rng_state()
    for source, weights in ((path, path), (folder, folder / "model.safetensors")):
        loaded = load_model(source)
        assert (loaded.path, loaded.digest) == (str(source), hashlib.sha256(weights.read_bytes()).hexdigest())
        assert not loaded.reconstructor.training
        assert loaded.tokeniser == model.tokeniser
        assert loaded.reconstructor.decoding == model.reconstructor.decoding
        for name, value in model.reconstructor.state_dict().items():
            assert torch.equal(loaded.reconstructor.state_dict()[name], value), name
    assert load_model(path).config == header.to_dict()
    assert torch.equal(torch.get_rng_state(), before)  # the user's


def test_code_and_classes_from_elsewhere_are_refused_and_not_run(save, payload, save_header, tmp_path, monkeypatch):
    path = save(callbacks=payload[0])
    with pytest.raises(InputError, match=r"model\.ckpt.*runs no code from files"):
        read_checkpoint(path)
    assert not payload[1].exists()
    (tmp_path / "elsewhere.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"'model': .*elsewhere\.Network"):
        load_model(save_header(model={"class_path": "elsewhere.Network", "init_args": {}}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [None, b"", b"no checkpoint at all", b"root\x00\x00\xf3\x00" * 100])
def test_another_file_or_none_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "other.ckpt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"other\.ckpt.*(not a|no such) checkpoint"):
        read_checkpoint(path)


def test_a_truncated_checkpoint_is_an_error(save):
    path = save()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a checkpoint"):
        read_checkpoint(path)
    torch.save([1.0], path)
    with pytest.raises(InputError, match="not a checkpoint of pflow"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({KEY: None}, "not a checkpoint of pflow"),
        ({KEY: "{"}, "not JSON"),
        ({"state_dict": None}, "'state_dict': the weights are missing"),
        ({"state_dict": {3: torch.zeros(1)}}, "'3': expected tensors by name"),
        ({"state_dict": {"a": [1.0]}}, "'a': expected tensors by name"),
        ({"state_dict": {"a": torch.zeros(3).to_sparse()}}, "'a': expected a dense tensor"),
        ({"state_dict": {"a": torch.zeros(3, dtype=torch.complex64)}}, "'a': expected a dense tensor of real numbers"),
        ({"state_dict": {"a": torch.zeros(1).expand(10**9, 1000)}}, r"'a': a tensor of shape \[1000000000, 1000\] has"),
    ],
)
def test_a_part_that_is_missing_or_of_another_kind_is_an_error(save, changes, message):
    with pytest.raises(InputError, match=message):
        read_checkpoint(save(**changes))


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"format": FORMAT - 1}, "format", rf"expected a header of format {FORMAT}, found 1, .* 1\.2\.3"),
        ({"format": None}, "format", f"expected a header of format {FORMAT}, found none"),
        ({"tokeniser": {}}, "tokeniser", "missing"),
        ({"model": None}, "model", "missing"),
        ({"calibration": {"mass": {}}}, "calibration", "mass"),
        ({"provenance": ["a.root"]}, "provenance", "not of the expected type"),
    ],
)
def test_a_field_of_the_header_that_cannot_be_used_is_named(save_header, changes, field, message):
    with pytest.raises(InputError, match=rf"model\.ckpt, 'pflow\.{field}': .*{message}"):
        read_checkpoint(save_header(**changes))


def test_missing_weights_are_an_error_that_names_them(save, model):
    weights = model.reconstructor.state_dict(prefix=PREFIX)
    gone = next(iter(weights))
    del weights[gone]
    with pytest.raises(InputError, match=rf"Missing key.*{gone.removeprefix(PREFIX)}"):
        load_model(save(state_dict=weights))


def change(folder, **changes) -> None:
    """Change fields of the text; None takes one out."""
    path = folder / "model.json"
    header = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in header.items() if value is not None}))


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"not a folder of weights: it has no {name}"):
        read_checkpoint(folder)


def test_the_folder_of_a_training_names_its_checkpoints(tmp_path):
    (tmp_path / "best.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match=r"nearest matches: .*best\.ckpt"):
        read_checkpoint(tmp_path)


def replace_weights(folder, content: bytes) -> None:
    """Replace the weights by other bytes, with their digest in the text."""
    (folder / "model.safetensors").write_bytes(content)
    change(folder, sha256=hashlib.sha256(content).hexdigest())


def test_other_weights_than_those_of_the_text_are_an_error(folder):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    content = safetensors.torch.save({**tensors, PREFIX + "extra": torch.zeros(1)})
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors: damaged, or not what model\.json was written for"):
        read_checkpoint(folder)
    change(folder, sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(InputError, match=r"toy.*Unexpected key.*extra"):
        load_model(folder)
    replace_weights(folder, b"nothing of the kind")
    with pytest.raises(InputError, match=r"model\.safetensors: not a safetensors file"):
        read_checkpoint(folder)
    for digest in (None, 7):
        change(folder, sha256=digest)
        with pytest.raises(InputError, match=r"model\.json, 'sha256': missing"):
            read_checkpoint(folder)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000])
def test_a_text_that_is_not_json_is_an_error(save, folder, content):
    """Or one that is nested deeper than Python can read."""
    (folder / "model.json").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.json: not JSON"):
        read_checkpoint(folder)
    with pytest.raises(InputError, match="not JSON"):
        read_checkpoint(save(**{KEY: content.decode(errors="ignore")}))


@pytest.fixture
def shipped(folder, tmp_path, monkeypatch):
    """A folder of models as pflow ships them, with one in it."""
    ships = tmp_path / "weights"
    ships.mkdir()
    folder.rename(ships / "toy-photon")
    monkeypatch.setattr("pflow.config.weights_dir", lambda: ships)
    return ships


def test_shipped_models_are_listed_and_loaded_by_name(shipped):
    (shipped / "notes").mkdir()
    assert shipped_models() == ["toy-photon"]
    loaded = load_model("toy-photon")
    assert (loaded.path, loaded.digest) == ("toy-photon", load_model(shipped / "toy-photon").digest)
    with pytest.raises(InputError, match=r"toy-foton: no such.* \(toy-photon\) \(nearest matches: toy-photon"):
        load_model("toy-foton")


def test_a_name_goes_before_a_folder_of_that_name(shipped, tmp_path, monkeypatch):
    (tmp_path / "toy-photon").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_model("toy-photon").path == "toy-photon"
    with pytest.raises(InputError, match="not a folder of weights"):
        load_model("./toy-photon")


def test_shipped_models_are_small_and_old_names_lead_to_them():
    for name in ("ild-g4-general", "cld-general"):
        with pytest.warns(FutureWarning, match=f"the model '{name}' of pflow 0.3 is gone: 'general' takes its place"):
            renamed = read_checkpoint(name)
        assert (renamed.path, renamed.digest) == ("general", read_checkpoint("general").digest)
    for name in shipped_models():
        model = load_model(name)
        assert model.reconstructor.decoding.max_particles >= 1
        assert ("tracker hits" in repr(model)) == (name == "ild-g4-translation")
        assert sum(path.stat().st_size for path in (weights_dir() / name).iterdir()) <= 4e6  # bytes


def test_decoding_options_that_are_gone_are_named(save_options, header):
    message = r"model\.ckpt: made by pflow 0\.3, whose decoding options photon_depth 12\.0"
    with pytest.warns(FutureWarning, match=message):
        read = read_checkpoint(save_options("decoding", photon_depth=12.0, require_all_tracks=False))
    assert read.header.model == header.model


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_finite_number_is_an_error_that_names_it(save, folder, model, value):
    weights = {name: tensor.clone() for name, tensor in model.reconstructor.state_dict(prefix=PREFIX).items()}
    spoilt = next(name for name, tensor in weights.items() if tensor.ndim == 2)
    weights[spoilt][0] = value
    n = weights[spoilt].shape[1]
    with pytest.raises(InputError, match=rf"'{spoilt}': {n} of {weights[spoilt].numel()} weights are not finite"):
        read_checkpoint(save(state_dict=weights))
    replace_weights(folder, safetensors.torch.save(weights))
    with pytest.raises(InputError, match=rf"model\.safetensors, '{spoilt}': {n} of .* not finite"):
        load_model(folder)


def test_a_compressed_archive_is_refused_before_it_is_unpacked(save, tmp_path):
    path = save()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "bomb.ckpt", "w", zipfile.ZIP_DEFLATED) as bomb:
        for part in archive.infolist():
            bomb.writestr(part.filename, archive.read(part))
    with pytest.raises(InputError, match=r"bomb\.ckpt.*compressed"):
        read_checkpoint(tmp_path / "bomb.ckpt")


@pytest.fixture
def save_options(save_header, header):
    """Write a checkpoint with some options of its network, or of another part of its model, changed."""

    def write(part="network", **options):
        init_args = header.model["init_args"]
        return save_header(model={**header.model, "init_args": {**init_args, part: {**init_args[part], **options}}})

    return write


@pytest.mark.parametrize(
    ("network", "message"),
    [({"width": 2**16, "feedforward": 2**16}, "size mismatch"), ({"encoder_layers": 50}, "Missing key")],
)
def test_sizes_are_compared_with_the_weights_before_memory_is_taken(save_options, network, message, monkeypatch):
    monkeypatch.setattr("pflow.checkpoint.load_weights", load_weights_on_meta)
    expected = rf"model\.ckpt, 'state_dict': its weights do not fit its configuration: .*{message}"
    with pytest.raises(InputError, match=expected):
        load_model(save_options(**network))


def load_weights_on_meta(reconstructor, checkpoint, *, assign=False):
    assert all(parameter.is_meta for parameter in reconstructor.parameters())
    load_weights(reconstructor, checkpoint, assign=assign)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        *(("network", "width", value) for value in (10**9, 10**400, True)),
        *(("network", "heads", value) for value in (0.5, "8")),
        *(("decoding", "max_particles", value) for value in (10**9, 0, 1.5)),
    ],
)
def test_a_size_out_of_range_is_an_error_at_once(save_options, part, name, value):
    with pytest.raises(InputError, match=rf"makes no network: .*\b{name}\b"):
        load_model(save_options(part, **{name: value}))


@pytest.mark.parametrize("init_args", [{"network": 3}, {"network": [1]}, [1], "network", {"network": {"special": []}}])
def test_options_of_the_wrong_type_are_an_error(save_header, header, init_args):
    with pytest.raises(InputError, match=r"model\.ckpt, '(pflow\.)?model': (its configuration makes|values that)"):
        load_model(save_header(model={**header.model, "init_args": init_args}))


def test_tokens_without_the_hits_that_the_network_reads_are_refused(model, make_model, save_model, tmp_path):
    tokeniser = dataclasses.replace(model.tokeniser, config=dataclasses.replace(model.tokeniser.config, readout=False))
    network = PointingNetworkConfig(width=8, heads=1, encoder_layers=1, decoder_layers=1, feedforward=8)
    path = save_model(make_model(tokeniser, PointingReconstructor, network=network), tmp_path / "a.ckpt")
    with pytest.raises(InputError, match=r"a\.ckpt, 'tokeniser\.config\.readout': the network reads single hits"):
        load_model(path)


def test_the_version_that_reads_an_old_model_is_named(save, save_header, save_options, header):
    tokeniser = header.to_dict()["tokeniser"]
    tokeniser["recipe"] = tokeniser.pop("config")
    old_weights = {"state_dict": {"reconstructor.begin": torch.zeros(1)}}
    for write, change in ((save_options, {"bias": True}), (save_header, {"tokeniser": tokeniser}), (save, old_weights)):
        with pytest.raises(InputError, match=r"made by pflow 1\.2\.3; pflow 0\.3 is the last .* of 0\.1 to 0\.3\)"):
            load_model(write(**change))


@pytest.fixture
def checkpoint(save, model):
    """A checkpoint of the small model, and a large and a shared tensor beside its weights."""
    weights = model.reconstructor.state_dict(prefix=PREFIX)
    shared = torch.zeros(4)
    return save(state_dict={**weights, "other.a": shared, "other.b": shared[::2]})


def test_weights_are_exact_repeated_and_name_their_checkpoint(checkpoint, tmp_path):
    write_weights(checkpoint, tmp_path / "toy")
    source, written = (read_checkpoint(path) for path in (checkpoint, tmp_path / "toy"))
    assert written.state_dict.keys() == source.state_dict.keys()
    assert all(torch.equal(written.state_dict[name], weight) for name, weight in source.state_dict.items())
    header = written.header.to_dict()
    assert header.pop("provenance") == {**source.header.provenance, "checkpoint_sha256": source.digest}
    assert header.items() <= source.header.to_dict().items()
    first = write_weights(checkpoint, tmp_path / "a")
    second = write_weights(tmp_path / "a", tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(first) == sorted((tmp_path / "a").iterdir())
    assert "optimizer_states" not in (tmp_path / "a" / "model.json").read_text()


def test_a_model_that_cannot_be_loaded_is_not_written(save, tmp_path):
    with pytest.raises(InputError, match="do not fit"):
        write_weights(save(state_dict={}), tmp_path / "toy")
    assert not (tmp_path / "toy").exists()
