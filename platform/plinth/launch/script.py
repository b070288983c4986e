"""Shell that runs a command under a scheduler: forward signals, wait until it ends, keep its exit status."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

#: Exit status (EX_TEMPFAIL) of a supervisor that left after a signal, with the state committed: start it again.
LEFT = 75

#: Ask the command itself to stop. Ends as a command of a list does, with `;` or `&`.
TERMINATE = 'kill -TERM "$job" 2>/dev/null;'


def waiting(words: str, ask: str = TERMINATE) -> list[str]:
    """Lines of bash that run `words`, do `ask` at SIGTERM, and leave the status in `$status`.

    A signal before `words` begin keeps them from beginning; one that comes while they are started is repeated to them
    once they have a number. What SIGTERM then ends before it could handle the signal has done nothing: status `LEFT`.

    The shell looks twice a second instead of waiting: where the signal ends the command at the same moment as it
    interrupts `wait`, bash 5.2 may wait for ever.
    """
    return [
        f"asked= job= status={LEFT}",
        f"trap 'asked=1; if [ -n \"$job\" ]; then {ask} fi' TERM INT",
        'if [ -z "$asked" ]; then',
        f"  {words} &",
        "  job=$!",
        f'  if [ -n "$asked" ]; then {ask} fi',
        '  while kill -0 "$job" 2>/dev/null; do sleep 0.5; done',
        '  wait "$job"; status=$?',
        f'  if [ -n "$asked" ] && [ "$status" = {128 + signal.SIGTERM} ]; then status={LEFT}; fi',
        "fi",
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
