from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

CODE = """
import resource, sys
import numpy as np
from pflow.data.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(30):
    arrays = [np.ones(500_000) for _ in range(4)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_freed_memory_is_not_asked_for_again():
    def faults(word: str) -> int:
        done = subprocess.run([sys.executable, "-c", CODE, word], capture_output=True, text=True, check=True)
        return int(done.stdout)

    page = resource.getpagesize()
    assert faults("give back") - faults("keep") > 10 * 4 * 500_000 * 8 / page
