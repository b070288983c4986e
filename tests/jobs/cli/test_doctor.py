"""`plinth doctor` reports what it finds, and the remedy of what is missing."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import socket
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from plinth_jobs.cli import doctor

Plinth = Callable[..., Any]


def test_findings_in_json(plinth: Plinth) -> None:
    outcome = plinth("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(outcome.out)}
    assert findings["Python"]["state"] == "ok"
    assert {"cores", "memory", "disk", "GPU", "manual pages", "Dagster pages", "MLflow pages"} <= set(findings)
    assert all(finding["state"] in ("ok", "warn", "missing") for finding in findings.values())
    assert all(finding["advice"] for finding in findings.values() if finding["state"] != "ok")
    assert outcome.code == int(any(finding["state"] == "missing" for finding in findings.values()))


def test_table_fits_80_columns(plinth: Plinth, monkeypatch: pytest.MonkeyPatch) -> None:
    long = doctor.MachineFinding("BF16 on the CPU", "warn", "found something " * 9, "do something about it " * 9)
    monkeypatch.setattr(doctor, "bf16", lambda: long)
    assert max(map(len, plinth("doctor").out.splitlines())) <= 80


def test_missing_package_is_named_and_exits_1(plinth: Plinth, monkeypatch: pytest.MonkeyPatch) -> None:
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "deepspeed" else known(name))
    outcome = plinth("doctor")
    assert outcome.code == 1
    assert "not installed: deepspeed" in outcome.out
    assert "make setup" in outcome.out


def test_an_installed_package_advises_pip_with_our_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has neither a Makefile nor constraints.txt."""
    monkeypatch.setattr(doctor, "_source_tree", lambda: False)
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("deepspeed", "trafilatura") else "1")
    command = f"`{sys.executable} -m pip install"
    pin = next(one for one in requires("plinth") or () if one.startswith("trafilatura=="))
    assert doctor.packages().advice.startswith(f"run {command} 'deepspeed' '{pin}'`")
    assert doctor.deep_learning().advice.startswith(f"run {command} 'deepspeed'`")
    monkeypatch.setattr(doctor, "_version", lambda name: "4.9.3" if name.startswith("antlr4") else "1")
    assert doctor.packages().advice.startswith(f"run {command} 'antlr4-python3-runtime==4.13.*'`")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "make" not in doctor.chromium().advice


def test_the_pin_that_breaks_selections_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "4.9.3" if name.startswith("antlr4") else "1")
    finding = doctor.packages()
    assert finding.state == "missing"
    assert "4.9.3" in finding.found


def test_unwritable_workspace(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert doctor.workspace(file / "workspace").state == "missing"
    assert doctor.workspace(tmp_path / "new").found.endswith("(created by the first run)")
    assert doctor.workspace(tmp_path).found == str(tmp_path)


@pytest.mark.parametrize(("free", "state"), [(2**40, "ok"), (2 * 2**30, "warn"), (2**20, "missing")])
def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**41, 0, free))
    assert doctor.disk(tmp_path / "deep" / "er").state == state


@pytest.mark.parametrize(("flags", "state"), [({"avx2", "amx_bf16"}, "ok"), ({"avx2"}, "warn"), (set(), "warn")])
def test_bf16(monkeypatch: pytest.MonkeyPatch, flags: set[str], state: str) -> None:
    monkeypatch.setattr(doctor, "_cpu_flags", lambda: flags)
    assert doctor.bf16().state == state


def test_gpus_are_listed_by_the_drivers_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'H200, 143771 MiB'\necho 'H200, 143771 MiB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.cuda() == doctor.MachineFinding("GPU", "ok", "2: H200, 143771 MiB")
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert doctor.cuda().state == "warn"


class Answering(http.server.BaseHTTPRequestHandler):
    """200 at one path, 404 elsewhere."""

    path_known = "/server_info"

    def do_GET(self) -> None:
        self.send_response(200 if self.path == self.path_known else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_dagster_answers(port: int) -> None:
    assert doctor.dagster(port) == doctor.MachineFinding("Dagster pages", "ok", f"running at http://127.0.0.1:{port}")


def test_another_server_on_the_port(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answering, "path_known", "/elsewhere")
    finding = doctor.dagster(port)
    assert finding.state == "warn"
    assert "another server (status 404)" in finding.found


def test_ports_without_an_answer() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert doctor.dagster(port).found == f"port {port} is in use"
    assert "is free" in doctor.dagster(port).found


def test_extensions_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "acme-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 2.0\n")
    points = "[plinth.annotators]\nshout = acme_nothing:SHOUT\n[plinth.annotator]\nwhisper = acme:WHISPER\n"
    points += "[plinth.commands]\nstatus = acme:STATUS\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {finding.name: finding for finding in doctor.extensions()}
    assert found["annotator shout"].state == "warn"
    assert "the annotator 'shout' of acme 2.0 cannot be imported: ModuleNotFoundError" in found["annotator shout"].found
    assert "fix or uninstall acme" in found["annotator shout"].advice
    assert "`plinth status` of acme 2.0 is already a command of Plinth" in found["command status"].found
    assert found["plinth.annotator whisper"].state == "warn"
    assert (
        "unknown entry point group; use one of plinth.annotators, plinth.readers"
        in found["plinth.annotator whisper"].advice
    )


def test_every_group_that_the_guide_names_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
    groups = re.findall(r"^\| [^|]+ \| `(plinth\.\w+)` \|", guide, re.MULTILINE)
    assert len(groups) > 15
    info = tmp_path / "acme-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\nshout = acme_nothing:SHOUT\n" for group in groups))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = list(doctor.extensions())
    assert len(found) == len(groups)
    assert [one.name for one in found if "cannot be imported" not in one.found] == []
