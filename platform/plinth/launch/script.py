"""Shell that runs a command under a scheduler: hand signals on, wait for its own end, keep its status."""

from __future__ import annotations

#: Exit status (EX_TEMPFAIL) of a supervisor that left after a signal, with the state committed: start it again.
LEFT = 75

#: Ask the command itself to stop.
TERMINATE = 'kill -TERM "$job" 2>/dev/null'


def waiting(words: str, ask: str = TERMINATE) -> list[str]:
    """Lines of bash that run `words`, do `ask` at SIGTERM, and leave the status in `$status`.

    A trap interrupts `wait`, which then tells of the signal; asked again, it tells how the command ended.
    """
    return [
        f"trap '{ask}' TERM INT",
        f"{words} &",
        "job=$!",
        'wait "$job"; status=$?',
        'while [ "$status" -gt 128 ]; do',
        '  wait "$job"; again=$?',
        '  if [ "$again" = 127 ]; then break; fi',
        '  if [ "$again" = "$status" ] && ! kill -0 "$job" 2>/dev/null; then break; fi',
        "  status=$again",
        "done",
    ]
