"""Who waits for whom in ranks that hang: read from what they dump before they are ended.

    hangs/rank-0000.json, .stack …   of each rank that could answer (hang_dump)
    hangs/nccl-rank-0 …              of NCCL's own watchdog, where it ran into its timeout first
    hangs/0001/                      the files of one hang, once they are read

Every rank numbers the collectives of a process group. A rank waits in one that others have not come to: these are
behind, and what they do instead is in their stacks.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plinth.training.directory import RunDirectory

#: Seconds that ranks have for their answer; those of other nodes hear of it later.
ANSWER_S = 10.0

#: Ranks whose place in the code is on the timeline, of those that are behind or, where none is, wait in no collective;
#: the files have all.
SHOWN = 8

_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (.+)$', re.MULTILINE)


def environment(run: RunDirectory) -> dict[str, str]:
    """Variables of a rank that have its flight recorder on, and dumped into the run's directory by NCCL's watchdog."""
    prefix = str(run.hangs.absolute() / "nccl-rank-")
    return {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
    }


def prepare(run: RunDirectory) -> None:
    """Remove answers to an earlier question, so that each one found is new."""
    run.hangs.mkdir(exist_ok=True)
    for path in run.hangs.glob("rank-*"):
        path.unlink()


def collect(run: RunDirectory, ranks: int) -> dict[str, Any]:
    """Wait for the ranks' answers, move them into a folder of their own; the fields of event `hang`."""
    until = time.monotonic() + ANSWER_S
    while len(list(run.hangs.glob("rank-*.json"))) < ranks and time.monotonic() < until:
        time.sleep(0.1)
    known = [int(path.name) for path in run.hangs.iterdir() if path.name.isdigit()]
    folder = run.hangs / f"{max(known, default=0) + 1:04d}"
    folder.mkdir()
    for path in [*run.hangs.glob("rank-*"), *run.hangs.glob("nccl-rank-*")]:
        path.rename(folder / path.name)
    dumps = {int(path.stem[5:]): json.loads(path.read_bytes()) for path in sorted(folder.glob("rank-*.json"))}
    fields = examine({rank: one["entries"] for rank, one in dumps.items()}, ranks)
    stacks = {rank: folder / f"rank-{rank:04d}.stack" for rank in fields.pop("elsewhere")[:SHOWN]}
    at = {str(rank): innermost(stack) for rank, stack in stacks.items()}
    return {**fields, "at": at, "files": str(folder.relative_to(run.root))}


def examine(entries: Mapping[int, Sequence[Mapping[str, Any]]], ranks: int) -> dict[str, Any]:
    """Which ranks wait in which collective, which have not come to it, and which have not answered.

    Args:
        entries: of each rank that answered, its flight recorder.
        ranks: of the run.
    """
    waiting: dict[tuple[str, str, int, bool], list[int]] = defaultdict(list)
    reached: dict[tuple[str, int], int] = {}  # group and rank -> its last collective
    for rank, own in entries.items():
        outstanding = [one for one in own if not one["retired"] and one["state"] != "completed"]
        if outstanding:
            first = min(outstanding, key=lambda one: int(one["record_id"]))
            group = ":".join(first["process_group"])
            number = int(first["p2p_seq_id" if first["is_p2p"] else "collective_seq_id"])
            waiting[group, str(first["profiling_name"]), number, bool(first["is_p2p"])].append(rank)
        for one in own:
            if not one["is_p2p"]:
                place = ":".join(one["process_group"]), rank
                reached[place] = max(reached.get(place, 0), int(one["collective_seq_id"]))
    behind = sorted(
        {
            rank
            for group, _, number, between_two in waiting
            for (known, rank), last in reached.items()
            if known == group and last < number and not between_two
        }
    )
    return {
        "waiting": [
            {"ranks": spans(own), "collective": name, "number": number, "group": group}
            for (group, name, number, _), own in sorted(waiting.items())
        ],
        "behind": spans(behind),
        "silent": spans([rank for rank in range(ranks) if rank not in entries]),
        "elsewhere": behind or [rank for rank in entries if not any(rank in own for own in waiting.values())],
    }


def innermost(stack: Path) -> str:
    """Where the main thread of a rank is, which faulthandler lists last: `file.py:10 function`."""
    try:
        blocks = stack.read_text().split("\n\n")
    except OSError:
        return "unknown"
    found = _FRAME.search(blocks[-1])
    return f"{Path(found[1]).name}:{found[2]} {found[3]}" if found else "unknown"


def spans(ranks: Sequence[int]) -> str:
    """Ranks as a short text: `0-6,8`."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
