"""Nothing that pflow does on local files opens a connection."""

from __future__ import annotations

import socket

import pytest

from pflow.cli.main import main


@pytest.fixture
def no_network(monkeypatch):
    """Every attempt to reach another address than a file is an error."""

    def refused(*arguments, **_):
        raise AssertionError(f"a connection was asked for: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket.socket, "connect_ex", refused)
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refused)


def test_training_reconstruction_evaluation_and_displays_need_no_network(no_network, tiny, small, tmp_path):
    run, reco = tmp_path / "run", str(tmp_path / "reco.root")
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", "--trainer.max_epochs=1"]
    assert main(["fit", *tiny, *data, f"--output={run}"]) == 0
    model = ["--checkpoint", str(run / "best.ckpt"), "--device=cpu", "-q"]
    assert main(["reconstruct", small["val"], *model, "-o", reco]) == 0
    assert main(["evaluate", reco, "--truth", small["val"], "-o", str(tmp_path / "e"), "--no-plots", "-q"]) == 0
    assert main(["display", small["val"], "--entry", "0", "--reco", reco, "-o", str(tmp_path / "event.html")]) == 0
