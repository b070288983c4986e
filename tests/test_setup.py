"""`make setup`: what it installs, in which order, and what it prints when it stops; fake programs, no network."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Python that makes an environment of itself and records the modules it is asked to run.
PYTHON = """#!/bin/sh
[ "$1" != -c ] || exit ${FAKE_VERSION:-0}
echo "$*" >> "$FAKE_LOG"
[ "$3 $4" != "$FAKE_INTERRUPTED" ] || { kill -INT 0; exit 130; }
case "$2 $3" in
  "venv --clear") rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
  "pip config") [ -z "$FAKE_INDEX" ] && exit 1; echo "$FAKE_INDEX";;
  "plinth_text.compiled "*) exit ${FAKE_KERNELS:-0};;
  "pip install") [ -z "$FAKE_SLOW" ] || [ "$*" = "${*#*torch}" ] || {
    n=$(($(wc -l < "$FAKE_SLOW") + 3)); while [ "$(wc -l < "$FAKE_SLOW")" -lt $n ]; do :; done; };;
  "uv --version") exit ${FAKE_UV:-0};;
  "uv pip") echo "index $UV_DEFAULT_INDEX cert $SSL_CERT_FILE" >> "$FAKE_LOG"; exit ${FAKE_INSTALL:-0};;
esac
"""


class Checkout:
    """A folder with the Makefile, whose Python is a fake one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            (folder / name).write_bytes((ROOT / name).read_bytes())
        self.folder, self.log = folder, folder / "log"
        self.python = folder / "fake-python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def make(self, target: str = "setup", **variables: str) -> tuple[int, str, list[str]]:
        """Exit status, stderr and the calls of Python of one `make`."""
        self.log.write_text("")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "MAKE", "SSL_"))}
        command = ["make", target, f"PYTHON={variables.pop('PYTHON', self.python)}"]
        environment = clean | {"FAKE_LOG": str(self.log)} | variables
        own: dict[str, Any] = {"cwd": self.folder, "env": environment, "start_new_session": True}
        done = subprocess.run(command, **own, capture_output=True, text=True, timeout=60)
        self.stdout = done.stdout
        return done.returncode, done.stderr, self.log.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a path with 'quotes' and spaces")


def test_torch_comes_first_with_pip_then_uv_for_the_rest_and_nothing_twice(checkout: Checkout) -> None:
    status, stderr, calls = checkout.make()
    assert (status, stderr) == (0, "")
    installs = [call for call in calls if " install " in call]
    assert ["torch" in installs[0].split(), "uv" in installs[1].split(), installs[2].startswith("-m uv ")] == [True] * 3
    assert all("--constraint constraints.txt" in call and "--quiet" not in call for call in installs)
    assert installs[2].endswith("--editable .[train,tasks]")
    assert checkout.make()[2] == []


def test_uv_takes_the_index_and_the_certificates_of_pip(checkout: Checkout) -> None:
    calls = checkout.make(FAKE_INDEX="https://mirror.example/simple", PIP_CERT="/authority.pem")[2]
    assert "index https://mirror.example/simple cert /authority.pem" in calls


def test_pip_installs_where_uv_cannot_be_had(checkout: Checkout) -> None:
    status, _, calls = checkout.make(FAKE_UV="1")
    assert status == 0
    assert calls[-2].startswith("-m pip install ")
    assert calls[-2].endswith("--no-build-isolation --editable .[train,tasks]")
    assert calls[-1] == "-m plinth_text.compiled plinth_text plinth plinth_audit plinth_lab"


@pytest.mark.parametrize("python", ["no-such-python", None])
def test_another_python_or_none_is_refused_by_name_before_anything_is_made(
    checkout: Checkout, python: str | None
) -> None:
    status, stderr, calls = checkout.make(FAKE_VERSION="1", **({"PYTHON": python} if python else {}))
    assert (status, calls, (checkout.folder / ".venv").exists()) == (2, [], False)
    assert "expected Python 3.11, 3.12 or 3.13" in stderr
    assert "make PYTHON=" in stderr


def test_a_setup_that_stopped_says_what_to_do_and_the_same_command_goes_on(checkout: Checkout) -> None:
    status, stderr, _ = checkout.make(FAKE_INSTALL="1")
    assert status == 2
    assert "run the same command again" in stderr
    assert "4 GB free in this folder (here: " in stderr
    (checkout.folder / ".venv" / "half").touch()
    status, _, calls = checkout.make()
    assert (status, calls[0]) == (0, "-m venv --clear .venv")
    assert not (checkout.folder / ".venv" / "half").exists()


def test_a_second_installation_that_stopped_leaves_no_environment_that_counts_as_finished(checkout: Checkout) -> None:
    checkout.make()
    assert checkout.make(".venv/.setup-dev", FAKE_INSTALL="1")[0] == 2
    assert "-m venv --clear .venv" in checkout.make()[2]


def test_a_further_installation_makes_no_earlier_one_stale(checkout: Checkout) -> None:
    checkout.make(".venv/.setup-bench")
    assert checkout.make(".venv/.setup-dev")[2] == []


@pytest.mark.parametrize("interrupted", ["--clear .venv", "install --disable-pip-version-check", "pip install"])
def test_ctrl_c_ends_with_what_to_do_and_the_same_command_goes_on(checkout: Checkout, interrupted: str) -> None:
    status, stderr, _ = checkout.make(FAKE_INTERRUPTED=interrupted)
    assert status != 0
    assert "run the same command again" in stderr
    assert checkout.make()[0] == 0


def test_kernels_that_did_not_compile_are_all_that_is_left_to_do(checkout: Checkout) -> None:
    assert checkout.make(FAKE_KERNELS="1")[0] == 2
    assert checkout.make()[2] == ["-m plinth_text.compiled plinth_text plinth plinth_audit plinth_lab"]
    assert checkout.make()[2] == []


def test_an_installation_that_prints_nothing_is_shown_by_its_size(checkout: Checkout) -> None:
    programs, measured = checkout.folder / "programs", checkout.folder / "measured"
    programs.mkdir()
    measured.touch()
    for name, does in (("sleep", "exit"), ("du", 'echo >> "$FAKE_SLOW"; printf "17\\t.venv"')):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    assert checkout.make(FAKE_SLOW=str(measured), PATH=f"{programs}:{os.environ['PATH']}")[0] == 0
    assert "  17 MB in .venv, in the end some 2,000" in checkout.stdout
