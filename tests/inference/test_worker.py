import os

import numpy as np
import pytest
import uproot

from pflow.cli.main import main
from pflow.config import config_dir
from pflow.inference.worker import command
from pflow.io.particles_root import read_provenance


def contents(path) -> dict[str, list]:
    """All that a file's events hold, as bytes: unlike numbers, NaN equals itself and -0.0 is not 0.0."""
    with uproot.open(path) as file:
        arrays = file["events"].arrays(library="np")
    return {name: [np.asarray(entry).tobytes() for entry in arrays[name]] for name in arrays}


@pytest.mark.parametrize(
    "options",
    [[], ["--max-particles=3", "--batch-size=2", "--chunk-size=5", "--format=rntuple", "--detector={detector}"]],
    ids=["defaults", "options"],
)
def test_an_output_is_repeated_from_its_provenance_bit_for_bit(options, sample_dir, tmp_path, monkeypatch):
    source = str(sample_dir / "gammasep_test_small.root")
    words = [option.format(detector=config_dir() / "detector" / "ild_g4.yaml") for option in options]
    first, again = str(tmp_path / "first file.root"), str(tmp_path / "again.root")
    assert (
        main(["reconstruct", source, "--checkpoint", "ild-g4-photon", "-o", first, "-q", "--device=cpu", *words]) == 0
    )
    made = read_provenance(first)
    monkeypatch.chdir(tmp_path)
    assert main([*command(made, again)[1:], "-q"]) == 0
    assert contents(first) == contents(again)
    assert read_provenance(again) == made
    assert len(made["checkpoint"]["sha256"]) == 64
    assert made["versions"].keys() == {"python", "torch", "numpy", "awkward", "uproot"}
    assert made["machine"].keys() == {"processor", "instructions", "threads", "gpu"}
    assert made["inputs"][0]["bytes"] == os.path.getsize(source)
    assert made["inputs"][0]["uuid"]
    chosen = {name: made["options"][name] for name in ("max_particles", "batch_size", "chunk_size", "format")}
    if options:
        assert chosen == {"max_particles": 3, "batch_size": 2, "chunk_size": 5, "format": "rntuple"}
        assert made["options"]["read_as"].endswith("ild_g4.yaml")
    else:
        assert made["options"]["read_as"] is None


def test_the_command_of_an_earlier_versions_file_holds_what_that_kept():
    made = {
        "inputs": [{"path": "a b.root"}],
        "checkpoint": {"path": "m.ckpt", "sha256": "0"},
        "options": {"format": "ttree", "detector": "ild_g4", "max_hits": 7},
    }
    expected = ["pflow", "reconstruct", "a b.root", "--checkpoint", "m.ckpt", "--output", "o", "--format", "ttree"]
    assert command(made, "o") == [*expected, "--max-hits", "7"]
