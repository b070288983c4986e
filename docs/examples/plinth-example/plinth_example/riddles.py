"""A probe: riddles about things of a house, each with three wrong answers."""

from __future__ import annotations

from plinth.evaluation.probes.base import Probe, ProbeItem

#: Riddles with their answers.
RIDDLES = (
    ("It has hands and a face, and shows the time", "clock"),
    ("It has teeth and puts hair in order", "comb"),
    ("It has a neck and no head, and holds wine", "bottle"),
    ("It has an eye and cannot see, and pulls thread", "needle"),
    ("It has four legs and cannot walk, and people eat at it", "table"),
    ("It has leaves and no branch, and people read it", "book"),
)


def build() -> list[ProbeItem]:
    """One item a riddle; wrong answers are those of the three riddles that follow, the control is the next riddle."""
    asked = [f"Riddle: {text}.\nAnswer: it is a" for text, _ in RIDDLES]
    answers = [f" {thing}" for _, thing in RIDDLES]
    count = len(RIDDLES)
    return [
        ProbeItem(
            item=RIDDLES[number][1],
            probe="riddles",
            family="knowledge",
            template="riddles",  # one form of question: one cluster of an interval
            prompt=asked[number],
            gold=answers[number],
            wrong=tuple(answers[(number + step) % count] for step in (1, 2, 3)),
            control=asked[(number + 1) % count],
        )
        for number in range(count)
    ]


PROBE = Probe(name="riddles", description="Things of a house by what they do.", family="knowledge", build=build)
