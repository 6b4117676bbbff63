from __future__ import annotations

import hashlib

import pytest

from pflow.checkpoint.digest import read_checked
from pflow.errors import InputError


def test_a_file_with_its_digest_is_read_and_others_are_refused_by_name(tmp_path):
    path, content = tmp_path / "weights", b"12 numbers"
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(InputError, match="weights: cannot be read: FileNotFoundError"):
        read_checked(path, digest, stated_in="model.json")
    path.write_bytes(content)
    assert read_checked(path, digest, stated_in="model.json") == content
    path.write_bytes(content[::-1])
    with pytest.raises(InputError, match=rf"weights: .*what model\.json was written for: .*expected {digest}"):
        read_checked(path, digest, stated_in="model.json")
