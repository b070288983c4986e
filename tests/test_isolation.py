"""A test that leaves its process changed fails with an error, affects no other test, and ends at its limit."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from plinth import processes
from tests import isolation

#: Each `left_…` changes one thing; the last test sees nothing of it.
TESTS = """
import os, signal, subprocess, sys, threading, time
import pytest

def sleeper(**options):
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], **options)

@pytest.fixture(scope="session")
def session_things():
    os.environ["OF_SESSION"] = "1"
    with sleeper() as process:
        yield process
        process.kill()
    del os.environ["OF_SESSION"]

@pytest.fixture(scope="module", autouse=True)
def careless():
    os.environ["OF_MODULE"] = "1"

def test_uses(session_things):
    assert os.environ["OF_SESSION"] == "1"

def test_left_handler():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def test_left_folder(tmp_path):
    os.chdir(tmp_path)

def test_left_variable():
    os.environ["LEFT"] = "it"

def test_removed_variable():
    del os.environ["HOME"]

def test_left_mask():
    os.umask(0)

def test_left_thread():
    threading.Thread(target=time.sleep, args=[600], daemon=True, name="late").start()

def test_left_child():
    sleeper()

def test_left_server():
    code = "import subprocess, sys; subprocess.Popen(['sleep', '601'], start_new_session=True)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)

@pytest.mark.slow
def test_slow_leaves():
    os.umask(0)

def test_fails_and_leaves():
    os.umask(0)
    assert False

@pytest.mark.timeout(0.5)
def test_hangs():
    threading.Event().wait()

def test_last(session_things):
    handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)]
    assert handlers == [signal.SIG_DFL, signal.default_int_handler, signal.SIG_DFL]
    assert os.getcwd() == FOLDER
    assert "LEFT" not in os.environ and "HOME" in os.environ
    assert os.umask(0o077) == 0o077
    assert session_things.poll() is None
    assert subprocess.run(["pgrep", "-f", "sleep 601"]).returncode
"""
PLUGIN = "from tests import isolation\nisolation.GRACE_S = 0.2\ndef pytest_configure(config):\n"
PLUGIN += "    config.pluginmanager.register(isolation.Isolation())\n"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return pytest's output for these tests, in a process that ignores the signals of a background job."""
    folder = tmp_path_factory.mktemp("isolation")
    (folder / "test_it.py").write_text(f"FOLDER = {str(folder)!r}\n{TESTS}")
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow: it\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short", "test_it.py"]
    command += ["--basetemp", "own"]  # in pytest's common folder it would delete what earlier sessions have left
    words = ["sh", "-c", 'trap "" INT QUIT TERM; umask 077; exec "$@"', "sh", *command]
    return subprocess.run(words, cwd=folder, env=processes.environment(), capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("test", "line"),
    [
        ("test_left_handler", r"handler of SIGTERM SIG_IGN, expected SIG_DFL"),
        ("test_left_folder", r"working directory /\S+test_left_folder0, expected /\S+"),
        ("test_left_variable", r"variable LEFT it, expected none"),
        ("test_removed_variable", r"variable HOME none, expected /\S+"),
        ("test_left_mask", r"umask 0000, expected 0077"),
        ("test_left_thread", r"thread late:"),
        ("test_left_child", r"process \d+: \S+ -S -c import time; time\.sleep\(600\)"),
        ("test_left_server", r"process \d+: sleep 601"),
        ("test_last", r"variable OF_MODULE 1, expected none"),
    ],
)
def test_what_a_test_leaves_fails_it_by_name(session: str, test: str, line: str) -> None:
    assert re.search(rf"^test_it\.py::{test} leaves behind\n{line}", session, re.MULTILINE), session
    assert f"PASSED test_it.py::{test}" in session  # the test itself has passed, and its teardown has not
    assert f"ERROR test_it.py::{test} " in session


def test_children_are_found_while_a_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    read, ended = isolation.Path.read_text, [FileNotFoundError("thread 1"), ProcessLookupError("thread 2")]

    def reading(path: isolation.Path) -> str:
        if ended:
            raise ended.pop()
        return read(path)

    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setattr(isolation.Path, "read_text", reading)
        assert process.pid in isolation.children()
        process.kill()


def test_no_other_test_is_hurt(session: str) -> None:
    assert "2 failed, 11 passed, 1 warning, 10 errors" in session, session
    assert "PytestWarning: test_it.py::test_slow_leaves leaves behind" in session
    assert "ERROR test_it.py::test_fails_and_leaves" in session  # a test that has failed as well


def test_a_test_that_hangs_ends_with_the_stacks_of_all_threads(session: str) -> None:
    assert "FAILED test_it.py::test_hangs - Failed: Timeout (>0.5s)" in session
    _, _, stacks = session.partition(" test_hangs ___")
    assert "threading.Event().wait()" in stacks
    assert "Stack of late" in stacks


def test_the_last_lines_name_what_was_slow_and_large(session: str) -> None:
    one = r"test_it\.py::\w+"
    assert re.search(rf"^\d+ CPU seconds; most: (\d+\.\d {one}, ){{9}}\d+\.\d {one}$", session, re.MULTILINE)
    assert re.search(rf"^largest test process \d+ MiB \({one}\), largest child \d+ MiB", session, re.MULTILINE)
