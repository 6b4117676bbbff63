"""Our EDM4hep files in ROOT itself, whose hadd reads and writes them; `test_with_podio` has podio read every member.

Needs ROOT, else skipped: pip install root==0.1a12 (Python 3.11).
"""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from pflow.event.particles import concatenate
from pflow.io.particles_root import read_reco

if importlib.util.find_spec("ROOT") is None:
    pytest.skip("ROOT is not installed", allow_module_level=True)
pytestmark = pytest.mark.slow


def test_hadd_merges_outputs(cld_rntuple_path, reconstruct, same_reco):
    out, *_ = reconstruct(cld_rntuple_path, detector=None, chunk=5, mc_links=True)
    both = out.with_name("both.root")
    root = Path(importlib.util.find_spec("ROOT").origin).parent
    subprocess.run([root / "bin" / "hadd", both, out, out], capture_output=True, check=True)
    single = read_reco(out)
    assert same_reco(read_reco(both), concatenate([single, single]))
