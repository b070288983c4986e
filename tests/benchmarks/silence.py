"""Longest silence of a command on a terminal: `python tests/benchmarks/silence.py COMMAND …`.

The command runs on a pseudo-terminal, so that it prints what a person sees, bars included. A silence is the time
between two outputs, before the first, or after the last.
"""

from __future__ import annotations

import os
import pty
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence

#: Control sequences that move the cursor or set a color.
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b.")
START = "(start)"


def longest_silence(
    command: Sequence[str], env: Mapping[str, str] | None = None, *, codes: Collection[int] = (0,)
) -> tuple[float, str]:
    """Return the longest silence in seconds, and the last line before it.

    Args:
        command: program and arguments.
        env: environment; this process's own by default.
        codes: exit codes of a command that did its work.

    Raises:
        RuntimeError: the command failed, so that its silences say nothing.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], list(command), dict(os.environ if env is None else env))
    longest, line, rest, last = (0.0, START), START, "", time.monotonic()
    while data := _read(terminal):
        longest = max(longest, (time.monotonic() - last, line), key=lambda one: one[0])
        *lines, rest = re.split(r"[\r\n]+", _CONTROLS.sub("", rest + data.decode(errors="replace")))
        line = next((each.strip() for each in reversed([*lines, rest]) if each.strip()), line)
        last = time.monotonic()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    if code not in codes:
        raise RuntimeError(f"{' '.join(command)} ended with {code} after: {line}")
    return max(longest, (time.monotonic() - last, line), key=lambda one: one[0])


def _read(terminal: int) -> bytes:
    """Return the next output, or nothing after the last."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux reports EIO when the last process has closed the terminal
        return b""


if __name__ == "__main__":
    seconds, before = longest_silence(sys.argv[1:], codes=range(256))
    print(f"{seconds:.1f} s of silence after: {before}")
