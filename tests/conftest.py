import dataclasses
import fcntl
import gc
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import torch
from uproot.reading import ReadOnlyFile

from pflow.checkpoint import KEY, PREFIX, Header, TrainedModel
from pflow.event import jagged
from pflow.event.events import Events, Reconstruction
from pflow.event.merge import Merge
from pflow.event.schema import make_hits, make_links, make_particles, make_tracks, make_truth
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.metrics.stats import Bootstrap
from pflow.model.api import DecodingConfig, ModelInputs, Reconstructor, describe
from pflow.model.pointing import PointingDecodingConfig, PointingNetworkConfig, PointingReconstructor
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.physics.detector import load_detector
from pflow.physics.pdg import charges, masses
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig

REPOSITORY = Path(__file__).resolve().parent.parent

# The collector would look through all that the libraries keep, again and again: a tenth of the tests' time.
gc.freeze()
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def closed_files(monkeypatch) -> Iterator[None]:
    """Close the ROOT files that a test leaves open.

    The collector finalises a file and what would have closed it in any order, and may warn of it in another test: the
    list keeps them until the test ends.
    """
    opened: list[ReadOnlyFile] = []
    init = ReadOnlyFile.__init__

    def noted(self: ReadOnlyFile, *args: Any, **kwargs: Any) -> None:
        opened.append(self)
        init(self, *args, **kwargs)

    monkeypatch.setattr(ReadOnlyFile, "__init__", noted)
    yield
    for file in opened:
        if hasattr(file, "_source"):  # else it could not be opened
            file.close()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The full samples: $PFLOW_DATA, by default ../shared/data beside the checkout."""
    folder = Path(os.environ.get("PFLOW_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the full samples are not in {folder}; set PFLOW_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def sample_dir() -> Path:
    """The small samples that come with the repository."""
    return REPOSITORY / "tests" / "data"


@pytest.fixture(scope="session")
def cld_path(sample_dir: Path) -> Path:
    """Five hadronic Z decays in CLD, reconstructed: the TTree."""
    return sample_dir / "cld_zqq_small.edm4hep.root"


@pytest.fixture(scope="session")
def cld_rec(cld_path: Path) -> Events:
    return read_events(cld_path)


@pytest.fixture(scope="session")
def cld_rntuple_path(sample_dir: Path) -> Path:
    """The same as an RNTuple, with all members: pflow copies its collections."""
    return sample_dir / "cld_zqq_small_rntuple.edm4hep.root"


@pytest.fixture(scope="session")
def cld_sim_path(sample_dir: Path) -> Path:
    """The first three of them as simulated hits without tracks: the RNTuple."""
    return sample_dir / "cld_zqq_small_sim_rntuple.edm4hep.root"


@pytest.fixture(scope="session")
def cld_sim(cld_sim_path: Path) -> Events:
    """The first three before their reconstruction, with tracks made from Monte Carlo particles."""
    return read_events(cld_sim_path, truth_tracks=True)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[..., Path]:
    """Makes a folder of this name, once by all processes of the tests; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made_once(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / "once" / name, shared / "once" / f"{name}.done"
        folder.parent.mkdir(exist_ok=True)
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # others wait here for the one that makes it
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return made_once


class _Asinh(torch.nn.Module):
    def forward(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"y": torch.asinh(values["x"])}


@pytest.fixture
def tiny_graphs(monkeypatch) -> None:
    """Any pointing network is exported as one operator in double precision: a real export takes a minute."""
    from pflow.export.convert import Graph, TensorSpec

    if not hasattr(torch.onnx, "ops"):
        pytest.skip(f"graphs need torch 2.13 or near it, not {torch.__version__}")
    x, y = (TensorSpec(name, "float64", ("n",)) for name in "xy")
    example = {"x": torch.linspace(-2.0, 2.0, 5, dtype=torch.float64)}
    graph = Graph(_Asinh(), example, inputs=(x,), outputs=(y,))
    monkeypatch.setattr("pflow.export.pointing.pointing_graphs", lambda *_: {"encoder": graph})


@pytest.fixture(scope="session")
def make_reco() -> Callable[..., Reconstruction]:
    """Makes a reconstruction: in each event of these numbers a photon of 1 GeV along x."""

    def make(numbers: Sequence[int], **links: ak.Array) -> Reconstruction:
        ones = np.ones((len(numbers), 1))
        photons = make_particles(pdg=22 * ones, charge=0 * ones, energy=ones, px=ones, py=0 * ones, pz=0 * ones)
        flags = np.zeros(len(numbers), dtype=np.uint32)
        return Reconstruction(particles=photons, event=np.array(numbers, dtype=np.int64), flags=flags, **links)

    return make


@pytest.fixture(scope="session")
def model(sample_dir, make_model) -> TrainedModel:
    """A small model with random but fixed weights, for tests that need no good one."""
    tokeniser = Tokeniser.fit([read_events(sample_dir / "multi_test_small.root", entry_stop=20)], TokenConfig())
    network = TranslationNetworkConfig(width=32, heads=4, encoder_layers=1, decoder_layers=1, feedforward=64)
    decoding = DecodingConfig(max_particles=6)
    return make_model(tokeniser, TranslationReconstructor, seed=7, network=network, decoding=decoding)


@pytest.fixture(scope="session")
def save_model() -> Callable[..., Path]:
    """Writes a model as the checkpoint of a fit; keywords are other keys of its mapping, None leaves one out."""

    def save(model: TrainedModel, path: Path, provenance: Mapping[str, Any] | None = None, **more: object) -> Path:
        header = Header(
            version="1.2.3",
            tokeniser=model.tokeniser,
            model=describe(model.reconstructor),
            provenance=provenance or {},
        )
        weights = model.reconstructor.state_dict(prefix=PREFIX)
        content = {KEY: json.dumps(header.to_dict()), "state_dict": weights, **more}
        torch.save({key: value for key, value in content.items() if value is not None}, path)
        return path

    return save


@pytest.fixture(scope="session")
def random_checkpoint(model, save_model, tmp_path_factory) -> Path:
    """The small model as a checkpoint, which other processes can load."""
    return save_model(model, tmp_path_factory.mktemp("random") / "random.ckpt")


@pytest.fixture(scope="session")
def make_model() -> Callable[..., TrainedModel]:
    """Makes a model with random weights from a tokeniser, a class of reconstructors and options of it."""

    def make(tokeniser: Tokeniser, kind: type[Reconstructor], *, seed: int = 3, **options: object) -> TrainedModel:
        torch.manual_seed(seed)
        reconstructor = kind(ModelInputs(**tokeniser.model_inputs), **options).eval()
        about = {"digest": "0" * 64, "path": "made-by-hand.ckpt", "config": {"seed": seed}}
        return TrainedModel(reconstructor=reconstructor, tokeniser=tokeniser, **about)

    return make


@pytest.fixture(scope="session")
def sized(sample_dir, make_model) -> TrainedModel:
    """A model with random weights that reads cells of the ECAL merged to 5 to 40 mm, by default 20."""
    merge = Merge(ecal_mm=20.0, hcal_mm=90.0, depth=8.0, ecal_sizes=[5.0, 40.0])
    names = ("log_energy", "nx", "ny", "nz", "radiation", "token_size")
    config = TokenConfig(hit_features=names, geometry=True, coarse=True, readout=True, merge=merge)
    network = PointingNetworkConfig(width=16, heads=2, encoder_layers=1, decoder_layers=1, feedforward=32)
    decoding = PointingDecodingConfig(max_particles=4)
    tokeniser = Tokeniser.fit([read_events(sample_dir / "multi_test_small.root", entry_stop=8)], config)
    return make_model(tokeniser, PointingReconstructor, network=network, decoding=decoding)


@pytest.fixture(scope="session")
def make_event() -> Callable[..., Events]:
    def make(particles: Sequence[tuple], hits: Sequence[tuple] = (), tracks: Sequence[tuple] = (), path="") -> Events:
        """One event with all particles along x.

        particles: (pdg, energy [GeV], status, parent, radius of the vertex [mm]); the last three have defaults.
        hits: (energy, {particle: share}, y [mm], subdetector) at x = 1900 mm; the last two have defaults.
        tracks: (particle, px, weight of the link); the last is 1 by default.
        """

        def columns(rows: Sequence[tuple], default: tuple) -> list[ak.Array]:
            filled = [(*row, *default[len(row) :]) for row in rows]
            return [ak.unflatten(np.array([row[k] for row in filled], float), [len(rows)]) for k in range(len(default))]

        pdg, energy, status, parent, radius = columns(particles, (0, 0, 1, -1, 0.0))
        mass, charge = (ak.unflatten(look_up(pdg[0]), [len(particles)]) for look_up in (masses, charges))
        momentum = np.sqrt(np.maximum(0.0, energy**2 - mass**2))
        linked = [(hit, *share) for hit, (_, shares, *_) in enumerate(hits) for share in shares.items()]
        source, particle, weight = columns(linked, (0, 0, 0))
        hit_energy, y, subdetector = columns([(e, *place) for e, _, *place in hits], (0, 0.0, 0))
        tracked, px, track_weight = columns(tracks, (0, 0, 1.0))
        return Events(
            detector=load_detector("ild_g4"),
            hits=make_hits(energy=hit_energy, x=0 * y + 1900, y=y, z=0 * y, subdetector=subdetector),
            tracks=make_tracks(b_field=3.5, px=px, py=0 * px, pz=0 * px, charge=0 * px + 1),
            truth=make_truth(
                **{"pdg": pdg, "mass": mass, "charge": charge, "status": status, "parent": parent},
                **{"px": momentum, "py": 0 * pdg, "pz": 0 * pdg, "vx": radius, "vy": 0 * pdg, "vz": 0 * pdg},
            ),
            hit_links=make_links(source=source, particle=particle, weight=weight),
            track_links=make_links(source=ak.local_index(px), particle=tracked, weight=track_weight),
            path=path,
        )

    return make


@pytest.fixture(scope="session")
def make_photons() -> Callable[..., Events]:
    """Makes events numbered from `first`, of one photon of at most `energy` GeV; number i has i % 7 + 2 hits."""

    def make(n: int, first: int = 0, *, energy: float = 10.0) -> Events:
        rng = np.random.default_rng([first, n])
        counts = [(first + i) % 7 + 2 for i in range(n)]
        direction = rng.normal(size=(n, 3))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        energies = energy * rng.uniform(0.5, 1.0, n)
        entry = 1850 * direction / np.linalg.norm(direction[:, :2], axis=1, keepdims=True)  # in the barrel
        position = [entry[i] + rng.normal(0, 5, (counts[i], 3)) for i in range(n)]
        return Events(
            detector=load_detector("ild_g4"),
            event=np.arange(first, first + n),
            hits=make_hits(
                energy=[[energies[i] / counts[i]] * counts[i] for i in range(n)],
                **{axis: [p[:, k].tolist() for p in position] for k, axis in enumerate("xyz")},
            ),
            truth=make_truth(
                pdg=[[22]] * n,
                charge=[[0.0]] * n,
                mass=[[0.0]] * n,
                **{key: (energies * direction[:, k])[:, np.newaxis] for k, key in enumerate(("px", "py", "pz"))},
            ),
            hit_links=make_links(
                source=[list(range(count)) for count in counts], particle=[[0] * count for count in counts]
            ),
        )

    return make


@pytest.fixture(scope="session")
def train_files(tmp_path_factory, make_photons) -> list[str]:
    """Two files: events 0 to 39 and 40 to 69."""
    folder = tmp_path_factory.mktemp("train")
    for name, first, n in (("a", 0, 40), ("b", 40, 30)):
        write_events(folder / f"{name}.root", make_photons(n, first))
    return [str(folder / "a.root"), str(folder / "b.root")]


@pytest.fixture(scope="session")
def val_file(tmp_path_factory, make_photons) -> str:
    """Events 1000 to 1009, a hundred times the energy of the training events."""
    path: Path = tmp_path_factory.mktemp("val") / "val.root"
    write_events(path, make_photons(10, 1000, energy=1000.0))
    return str(path)


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Checks that events hold the same in all parts, NaN equal to NaN, to tolerances, the relative by column too."""

    def check(one: Events, other: Events, *, rtol: Mapping[str, float] | float = 0.0, atol: float = 0.0) -> None:
        assert [name for name, _ in one.parts()] == [name for name, _ in other.parts()]
        for (name, part), (_, theirs) in zip(one.parts(), other.parts(), strict=True):
            assert jagged.count(part).tolist() == jagged.count(theirs).tolist(), name
            expected = jagged.columns(theirs)
            for column, values in jagged.columns(part).items():
                relative = rtol.get(column, 0.0) if isinstance(rtol, Mapping) else rtol
                assert values.dtype == expected[column].dtype, f"{name}.{column}"
                np.testing.assert_allclose(
                    values, expected[column], rtol=relative, atol=atol, err_msg=f"{name}.{column}"
                )

    return check


@pytest.fixture(scope="session")
def same_reco() -> Callable[[Reconstruction, Reconstruction], bool]:
    """Whether all numbers and types of two reconstructions are equal."""

    def content(reco: Reconstruction) -> list[Any]:
        parts = [getattr(reco, name) for name in ("particles", "hit_links", "track_links", "candidates")]
        lists = [part if part is None else (str(part.type), part.to_list()) for part in parts]
        return [reco.event.tolist(), reco.flags.tolist(), *lists]

    return lambda first, second: content(first) == content(second)


@pytest.fixture(scope="session")
def spoil() -> Callable[..., Events]:
    """Replaces a number, as ``hits.energy``, of the first object of an entry or of all its objects."""

    def spoil(events: Events, entry: int, field: str, value: float, *, of_all: bool = False) -> Events:
        part, _, name = field.partition(".")
        records = getattr(events, part)
        start, stop = jagged.offsets(jagged.count(records))[entry : entry + 2]
        values = jagged.columns(records)[name].copy()
        values[start : stop if of_all else start + 1] = value
        return dataclasses.replace(events, **{part: jagged.replaced(records, {name: values})})

    return spoil


@pytest.fixture
def as_in_the_foreground() -> Iterator[None]:
    """A shell lets its background jobs ignore SIGINT, nohup SIGHUP, and so tests if they run there."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def payload(tmp_path: Path) -> tuple[_Payload, Path]:
    """What a malicious file would hold, an object whose unpickling runs a command, and the file that it then makes."""
    return _Payload(tmp_path / "ran"), tmp_path / "ran"


@pytest.fixture
def largest_file() -> Callable[[int], AbstractContextManager[None]]:
    """Makes a context in which no file can be longer than so many bytes, as on a disk that is full."""

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """For numbers without a statement on their intervals, which take most of the time of an evaluation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(Bootstrap.__init__.__kwdefaults__, "n", 20)
        yield


@pytest.fixture(scope="session")
def no_figures() -> Iterator[None]:
    """Fits draw nothing, which is half of their time here; `test_end_to_end.py` looks for the figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pflow.train.callbacks.read_history", lambda folder: {})
        yield


@pytest.fixture(scope="session")
def tiny(no_figures) -> tuple[str, ...]:
    """Options of a model and data so small that a step takes milliseconds."""
    return (
        "--model.reconstructor=pflow.model.translation.TranslationReconstructor",
        *(f"--model.reconstructor.network.{name}" for name in ("width=8", "heads=1", "feedforward=8")),
        *(f"--model.reconstructor.network.{name}_layers=1" for name in ("encoder", "decoder")),
        "--model.reconstructor.decoding.max_particles=3",
        *("--data.batch_size=20", "--data.chunk-size=32", "--data.hit_energy_min=0.05"),
        *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
    )


@pytest.fixture(scope="session")
def small(sample_dir: Path, made_once) -> dict[str, str]:
    """Paths of the small samples of single photons, without what no fit here reads: that is a quarter of its time."""
    unused = dict.fromkeys(("tracks", "track_links", "tracker_hits", "tracker_hit_links", "reference"))
    names = {split: f"gamma1_{split}_small.root" for split in ("train", "val", "test")}

    def write(folder: Path) -> None:
        folder.mkdir()
        for name in names.values():
            events = dataclasses.replace(read_events(sample_dir / name), **unused, reference_name="")
            write_events(folder / name, events)

    folder = made_once("small", write)
    return {split: str(folder / name) for split, name in names.items()}


@pytest.fixture
def data(small: dict[str, str], tmp_path: Path) -> list[str]:
    """Options of a fit to the 50 photons of the validation sample, in the folder ``run``."""
    return [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / 'run'}"]


@pytest.fixture(scope="session")
def run(made_once, small, tiny) -> Path:
    """Folder of a finished fit: two epochs of five steps."""
    from pflow.cli.fit import main

    options = [*tiny, f"--data.train={small['val']}", f"--data.val={small['val']}", "--trainer.max_epochs=2"]

    def fit(folder: Path) -> None:
        assert main("fit", [*options, f"--output={folder}"]) == 0

    return made_once("run", fit)
