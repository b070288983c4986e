"""Why the model that predicts held-out text better can be the worse one on a task: what the comparison itself shows.

tokenizer      losses per token of different vocabularies cannot be compared; bits per byte can
distribution   the loss is lower on some slices only, and the task may be like the others
contamination  without items that training text held, the task's difference is gone, or the other way round
noise          the task could not have shown a smaller effect than this
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plinth.evaluation.comparison.differences import NONE, WHOLE, Difference
from plinth.records import Frozen

#: Answers are unlike held-out text when they cost so many times its bits per byte.
_UNLIKE = 2.0
#: Kinds that ask for ability, beside those that measure loss.
ABILITIES = ("probes", "tasks", "proxies")


class Explanation(Frozen):
    """One statement with the numbers it rests on. `sort` is of the module's list, or `unexplained`."""

    measure: str
    sort: str
    text: str


def reasons(
    lines: Sequence[Difference], same_tokenizer: bool, losses: tuple[float | None, float | None]
) -> list[Explanation]:
    """Reasons for every measure whose better model is not the one with fewer bits per byte.

    Args:
        lines: of the comparison.
        same_tokenizer: whether both cut text alike.
        losses: final training losses in nats per token, None where unknown.
    """
    loss = next((one for one in lines if one.kind == "slices" and one.slice == WHOLE), None)
    if loss is None:
        return []
    found = list(_per_token(loss, same_tokenizer, losses))
    for line in lines:
        against = line.better != NONE and loss.better != NONE and line.better != loss.better
        if line.kind in ABILITIES and line.slice == WHOLE and against:
            said = [*_contamination(line), *_distribution(line, lines, loss), *_tokenizer(line, same_tokenizer)]
            found += said or [Explanation(measure=line.measure, sort="unexplained", text=_unexplained(line, loss))]
    return found


def _per_token(loss: Difference, same: bool, losses: tuple[float | None, float | None]) -> Iterator[Explanation]:
    """A lower training loss beside more bits per byte, or the reverse."""
    a, b = losses
    if a is None or b is None or loss.better == NONE or a == b or (a < b) == (loss.better == "a"):
        return
    because = (
        "tokens of another vocabulary hold another amount of text" if not same else "it was taken on other batches"
    )
    sort = "tokenizer" if not same else "distribution"
    text = f"{_other(loss.better)} has the lower training loss ({min(a, b):.3f} against {max(a, b):.3f} nats per token)"
    yield Explanation(measure=loss.measure, sort=sort, text=f"{text} and more bits per byte: {because}.")


def _contamination(line: Difference) -> Iterator[Explanation]:
    if line.clean is None or line.clean_better == line.better:
        return
    became = "is gone" if line.clean_better == NONE else "is reversed"
    text = (
        f"Without {line.seen} items that training text held, the difference {became}: "
        f"{line.clean.value:+.4g} ({line.clean.low:+.4g} to {line.clean.high:+.4g})."
    )
    yield Explanation(measure=line.measure, sort="contamination", text=text)


def _distribution(line: Difference, lines: Sequence[Difference], loss: Difference) -> Iterator[Explanation]:
    """Slices of held-out text on which the model that wins the task has fewer bits too."""
    own = [one for one in lines if one.kind == "slices" and one.slice != WHOLE and one.better == line.better]
    if own:
        named = ", ".join(f"{one.slice} ({one.difference.value:+.3f})" for one in own[:4])
        text = f"{_model(loss.better)} has fewer bits per byte on the whole, {_model(line.better)} on {named}."
        yield Explanation(measure=line.measure, sort="distribution", text=text)


    if line.fewer_is_better and min(line.a.value, line.b.value) > _UNLIKE * max(loss.a.value, loss.b.value):
        text = (
            f"Its answers are unlike the held-out text: {line.a.value:.3g} and {line.b.value:.3g} bits per byte "
            f"against {loss.a.value:.3g} and {loss.b.value:.3g}. A closer fit to one can be a worse fit to the other."
        )
        yield Explanation(measure=line.measure, sort="distribution", text=text)


def _tokenizer(line: Difference, same: bool) -> Iterator[Explanation]:
    if not same:
        text = (
            "The tokenizers differ: short answers begin at other boundaries, which bits over whole documents even out."
        )
        yield Explanation(measure=line.measure, sort="tokenizer", text=text)


def _unexplained(line: Difference, loss: Difference) -> str:
    return (
        f"{_model(loss.better)} predicts held-out text better, {_model(line.better)} does better here; no slice, "
        "contaminated item or tokenizer of this comparison says why."
    )


def joined(reasons: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Reasons as the measures that one holds for, and its text with its sort."""
    found: dict[str, list[str]] = {}
    for one in reasons:
        found.setdefault(f"{one['text']} ({one['sort']})", []).append(one["measure"])
    return [(", ".join(measures), text) for text, measures in found.items()]


def _model(side: str) -> str:
    return side.upper()


def _other(side: str) -> str:
    return "B" if side == "a" else "A"
