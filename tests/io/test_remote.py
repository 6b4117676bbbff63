"""Files on servers: a local one for HTTP with range requests, and XRootD where it is installed."""

import http.server
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from pflow.data.dataset import FileOptions, read_chunks, survey
from pflow.errors import InputError
from pflow.inference.files import reconstruct_files
from pflow.io import root
from pflow.io.open import open_events, read_events
from pflow.io.particles_root import read_provenance, read_reco

# aiohttp's own: sessions and sockets that broke are closed when they are collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAME = "gammasep_test_small.root"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves the server's `content`, in ranges; while it is `broken`, ends each connection in the middle."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # else each answer, in two packets, waits 40 ms for the client to acknowledge the first
    )

    def do_GET(self):
        if not self.path.endswith(NAME):
            return self.send_error(404)
        part, size = self.server.content, len(self.server.content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        self.send_response(206 if asked else 200)
        if asked:
            first, last = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
            part = part[first : last + 1]
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET" and self.server.broken:
            self.server.broken -= 1
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
        elif self.command == "GET":
            self.wfile.write(part)

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def served(sample_dir, monkeypatch):
    monkeypatch.setattr(root, "FIRST_WAIT", 0.01)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.content, server.broken = (sample_dir / NAME).read_bytes(), 0
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{NAME}", server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_remote_file_is_read_and_trained_on_as_a_local_one(served, sample_dir):
    url, _ = served
    chunks, options = survey([url], FileOptions(), 20)
    events = next(read_chunks(chunks, options))
    assert (len(events), events.has_truth) == (25, True)
    assert read_events(url, entry_stop=2).hits.tolist() == read_events(sample_dir / NAME, entry_stop=2).hits.tolist()


def test_a_remote_file_is_reconstructed(served, model, tmp_path):
    url, _ = served
    options = {"checkpoint": model, "device": "cpu", "max_particles": 2}
    reconstruct_files([url], output_dir=tmp_path, **options)
    made = tmp_path / "gammasep_test_small.reco.root"
    assert len(read_reco(made)) == read_provenance(made)["inputs"][0]["entries"]
    assert read_provenance(made)["inputs"][0]["path"] == url
    assert reconstruct_files([url], output_dir=tmp_path, **options).finished_before == [made]


def test_a_connection_that_breaks_in_the_middle_is_tried_again(served, sample_dir):
    url, server = served
    with open_events(url) as file:
        server.broken = 2
        events = file.read(2, 4)
    assert server.broken == 0
    assert events.hits.tolist() == read_events(sample_dir / NAME, entry_start=2, entry_stop=4).hits.tolist()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_connection_that_stays_broken_is_an_input_error(served, on_error):
    url, server = served
    with open_events(url) as file:
        server.broken = 10**6
        with pytest.raises(InputError, match=rf"{url}: no connection, tried 4 times in \d+ s: "):
            file.read(2, 4, on_error=on_error)
        server.broken = 0


def test_a_missing_file_is_not_tried_again(served, monkeypatch):
    monkeypatch.setattr(root, "FIRST_WAIT", 1e6)
    with pytest.raises(InputError, match="cannot be opened as a remote file: FileNotFoundError"):
        open_events(served[0].replace(NAME, "other.root"))


def test_a_file_that_was_replaced_meanwhile_is_refused(served, sample_dir):
    url, server = served
    with open_events(url) as file:
        server.content = (sample_dir / "multi_test_small.root").read_bytes()
        server.broken = 1
        with pytest.raises(InputError, match="was replaced while it was read"):
            file.read(2, 4)


@pytest.mark.skipif(shutil.which("xrootd") is None, reason="no XRootD server is installed (apt install xrootd-server)")
@pytest.mark.skipif(importlib.util.find_spec("fsspec_xrootd") is None, reason="needs pflow[xrootd]")
def test_a_file_of_an_xrootd_server_has_the_events_of_the_local_one(sample_dir):
    code = "import sys, pflow; print(pflow.read_events(sys.argv[1], entry_stop=2).hits.energy.tolist(), flush=True)"
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as name:  # not below pytest's, which the server's user may not read
        folder, port = Path(name), 20000 + os.getpid() % 20000
        folder.chmod(0o777)
        shutil.copy(sample_dir / NAME, folder)
        settings = (f"xrd.port {port}", *(f"{key} {folder}" for key in ("all.export", "all.adminpath", "all.pidpath")))
        (folder / "server.cfg").write_text("\n".join([*settings, ""]))
        user = ["-R", "nobody"] if os.getuid() == 0 else []
        server = subprocess.Popen(
            ["xrootd", *user, "-c", str(folder / "server.cfg"), "-l", str(folder / "log")], **quiet
        )
        try:
            words = [sys.executable, "-c", code, f"root://127.0.0.1:{port}/{folder / NAME}"]
            soon = {**os.environ, "XRD_CONNECTIONWINDOW": "2"}  # its client waits for minutes by itself
            done = subprocess.run(words, env=soon, capture_output=True, text=True, timeout=120)
        finally:
            server.kill()
            server.wait()
    assert done.stdout == f"{read_events(sample_dir / NAME, entry_stop=2).hits.energy.tolist()}\n", done.stderr
