"""Files on servers: a local one for HTTP with range requests, and XRootD where it is installed."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from pflow.data.files import FileOptions, read_chunks, survey
from pflow.errors import InputError
from pflow.inference.files import reconstruct_files
from pflow.io import remote
from pflow.io.open import open_events, read_events
from pflow.io.particles_root import read_provenance, read_reco

# aiohttp's own: sessions and sockets that broke are closed when they are collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAME = "gammasep_test_small.root"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one file, in ranges; while `broken`, ends each connection in the middle of the answer."""

    protocol_version = "HTTP/1.1"
    content = b""
    broken = 0

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        if not self.path.endswith(NAME):
            return self.send_error(404)
        kind, part, size = type(self), self.content, len(self.content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        self.send_response(206 if asked else 200)
        if asked:
            first, last = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
            part = part[first : last + 1]
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body and kind.broken:
            kind.broken -= 1
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
        elif body:
            self.wfile.write(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def served(sample_dir, monkeypatch):
    """URL of the file, and the handler."""
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.01)

    class Own(Handler):
        content = (sample_dir / NAME).read_bytes()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{NAME}", Own
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_remote_file_has_the_events_of_the_local_one(served, sample_dir):
    url, _ = served
    assert read_events(url, entry_stop=2).hits.tolist() == read_events(sample_dir / NAME, entry_stop=2).hits.tolist()


def test_training_reads_it_in_chunks(served):
    chunks, options = survey([served[0]], FileOptions(), 20)
    events = next(read_chunks(chunks, options))
    assert len(events) == 25
    assert events.truth is not None


def test_a_remote_file_is_reconstructed(served, model, tmp_path):
    url, _ = served
    options = {"checkpoint": model, "device": "cpu", "max_particles": 2}
    reconstruct_files([url], output_dir=tmp_path, **options)
    made = tmp_path / "gammasep_test_small.reco.root"
    assert len(read_reco(made)) == read_provenance(made)["inputs"][0]["entries"]
    assert read_provenance(made)["inputs"][0]["path"] == url
    assert reconstruct_files([url], output_dir=tmp_path, **options).finished_before == [made]


@pytest.mark.parametrize("n_failures", [1, 2])
def test_a_connection_that_breaks_in_the_middle_is_tried_again(served, sample_dir, n_failures):
    url, handler = served
    with open_events(url) as file:
        handler.broken = n_failures
        events = file.read(2, 4)
    assert handler.broken == 0
    assert events.hits.tolist() == read_events(sample_dir / NAME, entry_start=2, entry_stop=4).hits.tolist()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_one_that_stays_broken_is_an_error_of_the_file(served, on_error):
    url, handler = served
    with open_events(url) as file:
        handler.broken = 10**6
        with pytest.raises(InputError, match=rf"{url}: no connection, tried 4 times in \d+ s: "):
            file.read(2, 4, on_error=on_error)
        handler.broken = 0


def test_a_file_that_is_not_there_is_not_waited_for(served, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_WAIT", 1e6)
    with pytest.raises(InputError, match="cannot be opened as a remote file: FileNotFoundError"):
        open_events(served[0].replace(NAME, "other.root"))


def test_a_file_that_was_replaced_meanwhile_is_refused(served, sample_dir):
    url, handler = served
    with open_events(url) as file:
        handler.content = (sample_dir / "multi_test_small.root").read_bytes()
        handler.broken = 1
        with pytest.raises(InputError, match="was replaced while it was read"):
            file.read(2, 4)


XROOTD = """
import json, os, subprocess, sys, time
from types import SimpleNamespace
from pflow.errors import InputError
from pflow.io import remote
from pflow.io.open import open_events

url, command = sys.argv[1], json.loads(sys.argv[2])

def start():
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, **quiet)
    time.sleep(1.5)
    return server

server = start()
try:
    with open_events(url) as file:
        before = file.read(0, 2).hits.energy.tolist()
        server.kill(), server.wait()
        def wait(seconds):
            global server
            if server.poll() is not None:
                server = start()
            else:
                time.sleep(seconds)
        remote.time = SimpleNamespace(sleep=wait, monotonic=time.monotonic)
        after = file.read(2, 4).hits.energy.tolist()
        remote.time.sleep = lambda seconds: None
        server.kill(), server.wait()
        try:
            file.read(4, 6)
            error = ""
        except InputError as found:
            error = str(found)
    print(json.dumps([before, after, error]), flush=True)
finally:
    server.kill()
os._exit(0)  # closing what the dead server held open takes the client long
"""

XRD_LIMITS = {
    "XRD_CONNECTIONWINDOW": "2",
    "XRD_CONNECTIONRETRY": "1",
    "XRD_REQUESTTIMEOUT": "3",
    "XRD_STREAMTIMEOUT": "2",
    "XRD_STREAMERRORWINDOW": "2",
    "XRD_TIMEOUTRESOLUTION": "1",
}
"""XRootD's client waits for minutes and more by itself."""


FIT_AND_RECONSTRUCT = """
import sys
from pflow.cli.main import main

path, folder = sys.argv[1:]
network = "--model.reconstructor.init_args.network"
data = [f"--data.{name}=['{path}']" for name in ("train", "val")]
sizes = [f"{network}.{name}=1" for name in ("encoder_layers", "decoder_layers")]
sizes += ["--model.reconstructor.init_args.decoding.eos_threshold=1.0"]  # untrained, it would end at once
sizes += [f"{network}.width=8", f"{network}.heads=2", f"{network}.feedforward=16", f"{network}.hidden_width=8"]
limits = ["--trainer.max-steps=2", "--trainer.limit-val-batches=1", "--trainer.enable-progress-bar=false"]
code = main(["fit", *data, *sizes, *limits, "--seed-everything=1", f"--output={folder}/run"])
reconstruct = ["reconstruct", path, "--output-dir", f"{folder}/out", "--checkpoint", f"{folder}/run/last.ckpt"]
sys.exit(code or main([*reconstruct, "--device", "cpu", "--max-particles", "2"]))
"""

needs_xrootd = [
    pytest.mark.skipif(
        shutil.which("xrootd") is None, reason="no XRootD server is installed (apt install xrootd-server)"
    ),
    pytest.mark.skipif(importlib.util.find_spec("fsspec_xrootd") is None, reason="needs pflow[xrootd]"),
]


@pytest.fixture
def xrootd(sample_dir):
    """URL of the file, and the command that starts its server."""
    with tempfile.TemporaryDirectory() as name:  # not below pytest's, which the server's user may not read
        folder = Path(name)
        folder.chmod(0o777)
        shutil.copy(sample_dir / NAME, folder)
        port = 20000 + os.getpid() % 20000
        settings = (f"xrd.port {port}", *(f"{key} {folder}" for key in ("all.export", "all.adminpath", "all.pidpath")))
        (folder / "server.cfg").write_text("\n".join([*settings, ""]))
        user = ["-R", "nobody"] if os.getuid() == 0 else []
        command = ["xrootd", *user, "-c", str(folder / "server.cfg"), "-l", str(folder / "log")]
        yield f"root://127.0.0.1:{port}/{folder / NAME}", command


class TestXRootD:
    pytestmark = needs_xrootd

    def test_a_server_that_is_stopped_and_started(self, xrootd, sample_dir):
        url, command = xrootd
        done = subprocess.run(
            [sys.executable, "-c", XROOTD, url, json.dumps(command)],
            env={**os.environ, **XRD_LIMITS},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout, done.stderr
        before, after, error = json.loads(done.stdout)
        assert [*before, *after] == read_events(sample_dir / NAME, entry_stop=4).hits.energy.tolist()
        assert re.search(r"root://.*: no connection, tried 4 times in \d+ s: ", error)

    def test_training_and_reconstruction_give_what_they_give_for_the_local_file(self, xrootd, sample_dir, tmp_path):
        url, command = xrootd
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(command, **quiet)
        try:
            for name, path in {"remote": url, "local": str(sample_dir / NAME)}.items():
                folder = tmp_path / name
                done = subprocess.run(
                    [sys.executable, "-c", FIT_AND_RECONSTRUCT, path, str(folder)],
                    env={**os.environ, **XRD_LIMITS},
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
                assert done.returncode == 0, done.stderr
        finally:
            server.kill()
            server.wait()
        of = {name: tmp_path / name / "out" / "gammasep_test_small.reco.root" for name in ("remote", "local")}
        assert read_provenance(of["remote"])["inputs"][0]["path"] == url
        remote_particles, local_particles = (read_reco(path).particles for path in of.values())
        assert len(remote_particles) > 0
        assert remote_particles.tolist() == local_particles.tolist()
