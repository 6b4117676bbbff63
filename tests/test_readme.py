"""What README says a user can do works in a folder outside the checkout, and prints what README shows."""

import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest

from pflow.cli.main import main
from pflow.config import shipped_models

pytestmark = pytest.mark.usefixtures("few_resamples")

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
FIT = ("trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.limit_val_batches=1", "data.batch_size=4")
SHORT = {"fit": FIT, "evaluate": ("no-plots",), "scan": ("entries=2",)}
"""Options that make a command short."""


def commands(block: str) -> list[tuple[list[str], list[str]]]:
    """The words of each command, and the lines that it prints."""
    found: list[tuple[list[str], list[str]]] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("#> "):
            found[-1][1].append(line[3:].partition("      (")[0])
        else:
            found.append((shlex.split(line, comments=True), []))
    return found


def shows(line: str, printed: str) -> bool:
    """Whether something printed has the words of a line in which ``...`` stands for any text."""
    pattern = r"\s+".join(re.escape(word).replace(re.escape("..."), ".*?") for word in line.split())
    return re.search(pattern, " ".join(printed.split())) is not None


@pytest.fixture
def no_network(monkeypatch):
    """Every attempt to reach another address than a file is an error."""

    def refused(*arguments, **_):
        raise AssertionError(f"a connection was asked for: {arguments}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refused)
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refused)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures", "no_network")
def test_every_command_works_from_a_folder_of_the_user(sample_dir, cld_rntuple_path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pflow.plots.report.scan_figures", lambda _: {})  # tests/cli and tests/plots draw them
    for path in sample_dir.glob("*_small*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "my.edm4hep.root").symlink_to(cld_rntuple_path)
    ran = 0
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "README.md", "exec"), {})
            continue
        for (program, *words), shown in commands(block):
            if program in ("git", "bash", "pip", "cp"):  # of the checkout
                continue
            assert program == "pflow"
            words += [f"--{option}" for option in SHORT.get(words[0], ()) if words[0] != "reconstruct" or not shown]
            assert main(words) == 0, words
            printed = capsys.readouterr()
            assert [line for line in shown if not shows(line, printed.out + printed.err)] == []
            ran += 1
    assert ran >= 9


def test_it_is_short_has_working_links_and_begins_with_the_scripts():
    for name in shipped_models():
        assert f"[`{name}`](pflow/pretrained/{name}/README.md)" in README
    assert len(README.splitlines()) <= 140
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", README):
        assert (REPOSITORY / target).exists(), target
    first = [(words, shown) for words, shown in commands(BLOCKS[0][1])]
    assert [words for words, _ in first[1:]] == [["bash", "scripts/demo.sh"], ["bash", "scripts/test.sh"]]
    demo = (REPOSITORY / "scripts" / "demo.sh").read_text("utf-8").replace("$out", "demo")
    assert shows(first[1][1][0], demo)
    assert "bash scripts/test.sh" in (REPOSITORY / ".ci" / "run").read_text("utf-8")
