"""The command `plinth corpus page` and its place among the servers of `plinth up`."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from plinth import processes
from plinth.compute.context import Context
from plinth_extras.corpus_page import PORT
from plinth_jobs import servers
from plinth_jobs.cli import call


def command(ctx: Context, *words: object) -> list[str]:
    return [sys.executable, "-m", "plinth_jobs.cli", "-w", str(ctx.workspace.root), "corpus", "page", *map(str, words)]


def test_it_serves_until_it_is_interrupted(ctx: Context, recipe: Path) -> None:
    port = processes.free_port("127.0.0.1")
    process = subprocess.Popen(command(ctx, "--port", port, "-r", recipe), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        address = process.stdout.readline().strip()
        assert address == f"http://127.0.0.1:{port}/"
        body = ""
        while not body:
            with suppress(urllib.error.URLError), urllib.request.urlopen(f"{address}whatif", timeout=60) as answer:
                body = answer.read().decode()
            time.sleep(0.05)
        assert re.search("recipe <code>ours.yaml</code>", body)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_ctrl_c_is_the_usual_end(ctx: Context) -> None:
    port = processes.free_port("127.0.0.1")
    process = subprocess.Popen(command(ctx, "--port", port), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    answered = False
    while not answered:
        assert process.poll() is None
        with suppress(urllib.error.URLError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60):
            answered = True
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_a_port_in_use_and_a_missing_library_are_named(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-w", str(ctx.workspace.root), "corpus", "page"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert call([*words, "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another --port" in capsys.readouterr().err
    assert call([*words, "--origin", "https://corpus.example.org"]) == 2
    assert "people login --behind-proxy" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert call(words) == 3
    assert "pip install 'plinth[page]'" in capsys.readouterr().err


def test_plinth_up_serves_it_where_its_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PORT == servers.CORPUS_PORT
    assert servers.free_corpus_port() is not None
    monkeypatch.setattr(servers, "find_spec", lambda name: None)
    assert servers.free_corpus_port() is None
