"""Shell that runs a command under a scheduler: forward signals, wait until it ends, keep its exit status."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

#: Exit status (EX_TEMPFAIL) of a supervisor that left after a signal, with the state committed: start it again.
LEFT = 75

#: Ask the command itself to stop.
TERMINATE = 'kill -TERM "$job" 2>/dev/null'


def waiting(words: str, ask: str = TERMINATE) -> list[str]:
    """Lines of bash that run `words`, do `ask` at SIGTERM, and leave the status in `$status`.

    The shell looks twice a second instead of waiting: where the signal ends the command at the same moment as it
    interrupts `wait`, bash 5.2 may wait for ever.
    """
    return [
        f"trap '{ask}' TERM INT",
        f"{words} &",
        "job=$!",
        'while kill -0 "$job" 2>/dev/null; do sleep 0.5; done',
        'wait "$job"; status=$?',
    ]


def logged(command: Sequence[str], log: Path) -> str:
    """A script for `bash -c`: runs a command, its output both to the caller's and to `log`, to the last line."""
    lines = [
        f"exec > >(trap '' TERM INT; exec tee -a {shlex.quote(str(log))}) 2>&1",
        "tee=$!",
        *waiting(shlex.join(command)),
        "exec >&- 2>&-",
        'wait "$tee"',
        'exit "$status"',
    ]
    return "\n".join(lines)
