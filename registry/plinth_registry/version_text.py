"""What MLflow shows first of a candidate's version: marks, its trial, the gates with what they saw, scores.

For people only. A look at the gates writes all of it again; a mark keeps the scores that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from plinth.evaluation.gate import BLOCKING, GateState
from plinth.text.markdown import plain

SCORES = "## Scores"
HOW_TO_APPROVE = (
    "To approve, run `plinth approve`. Where MLflow asked for your login and the gate policy accepts it, two tags on "
    "this version do the same: `approval` = `approved`, `approval.reason` = why. A second person uses `approval.2`, "
    "`approval.2.reason`."
)
#: Tag that answers approval tags which do not count (`plinth_registry.review`).
ANSWER = "approval.answer"
#: Characters that MLflow's databases keep of a description.
LIMIT = 5000
#: Tags of gates: state and reason.
GATE = "gate/"
#: Characters of a gate's reason; the tag `gate/NAME` has all.
REASON = 150
#: Characters of a trial's finding; the tag `trial` has all.
TRIAL = 400


def scores(checkpoint: str, slices: Mapping[str, Any]) -> str:
    """The part about what was measured: bits per byte by slice."""
    rows = ["| slice | bytes | model | gzip -9 | byte trigram |", "|---|---|---|---|---|"]
    for name, row in sorted(slices.items()):
        cells = [str(row.get(column, "")) for column in ("bytes", "model", "gzip", "trigram")]
        rows.append(f"| {plain(name)} | {' | '.join(cells)} |")
    head = f"Checkpoint `{checkpoint}`, in bits per byte of held-out text (lower is better):"
    return "\n".join([SCORES, "", HOW_TO_APPROVE, "", head, "", *rows])


def version_text(known: str, tags: Mapping[str, str]) -> str:
    """A version's description, of at most `LIMIT` characters: later slices are left out where there are too many.

    Args:
        known: the description as it is, whose scores are kept.
        tags: of the version, as `registration` and `freeze` write them.
    """
    lines = [*_banner(tags), *_gates(tags)]
    kept = known[known.index(SCORES) :] if SCORES in known else known
    text = "\n".join([*lines, kept]) if lines else kept
    if len(text) > LIMIT:
        note = "\n| … more: metrics `bits_per_byte/…` of the run | | | | |"
        text = text[: LIMIT - len(note)].rpartition("\n")[0] + note
    return text


def _banner(tags: Mapping[str, str]) -> Iterable[str]:
    if tags.get("taint"):
        yield f"> **MARKED AS UNFIT, do not use.** {plain(tags['taint'])}"
        yield f"> What it came of and what came of it: `plinth release impact {tags.get('checkpoint', '')[:16]}`"
        yield ""
    if tags.get("root", "").startswith("demo root"):
        yield f"> Signed under a **{plain(tags['root'])}**, whose keys protect nothing."
        yield ""
    if tags.get(ANSWER):
        yield f"> **Approval tags are not counted.** {plain(tags[ANSWER])}"
        yield ""
    if tags.get("mean"):
        yield f"> The weights are a {plain(tags['mean'])}."
        yield ""
    if tags.get("trial"):
        yield f"> **Canary, at the last look:** {_short(tags['trial'], TRIAL)}"
        yield f"> Plot: `{plain(tags.get('trial.page', ''))}` among the artifacts of the source run."
        yield ""


def _gates(tags: Mapping[str, str]) -> Iterable[str]:
    rows = [row for name in sorted(tags) if name.startswith(GATE) for row in _row(name.removeprefix(GATE), tags[name])]
    if not rows:
        return
    yield f"## Gates: {plain(tags.get('gates', ''))}"
    yield ""
    yield from ("| gate | state | evidence |", "|---|---|---|")
    yield from rows
    yield ""
    where = "`gates-….json` among the artifacts of the source run"
    yield f"{plain(tags.get('policy', 'No signed policy'))}. Evidence: {where}."
    yield ""


def _row(name: str, text: str) -> Iterable[str]:
    """The row of a gate from its tag; none if the policy does not require it, or someone has set something else."""
    state, _, detail = text.partition(": ")
    if state in get_args(GateState):
        shown = f"**{state}**" if state in BLOCKING else state
        yield f"| {plain(name)} | {shown} | {_short(detail, REASON)} |"


def _short(text: str, most: int) -> str:
    shown = plain(text)
    return shown if len(shown) <= most else f"{shown[:most]}…"
