"""Connected components of documents that share keys, in rounds of small tasks. No task holds the whole corpus.

    fold      per range of documents: every document points to the smallest document that its edges lead to
    answer    per range of documents: where the documents that others point to point themselves

An edge leads from a document to a smaller one. A fold joins the edges of its range with a union-find forest. If the
trees of two documents outside the range are joined, the larger document is hooked to the smaller one: this edge goes
to the larger document's range in the next round. Between folds, each document moves to where its target points (pointer
jumping). The rounds end if no document is hooked and every target points to itself. Each component is then a star, and
its center is the component's smallest document.

A document with two smaller neighbors hooks one to the other, and chains become half as long with every round. The
rounds follow the alternation of small stars and large stars by Kiveris et al. 2014 ("Connected components in MapReduce
and beyond"), which takes at most on the order of log² n rounds, and about log n in practice. Documents without an edge
take no part.

All tables are sorted runs. A task holds 8 bytes per document of its range, and a chunk of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.dedup import sorted_runs
from plinth.corpus.dedup.run_tree import keyed, narrow
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth_text.arrays import U64, Bools
from plinth_text.compiled import compiled

VERSION = "1"

#: Runs of (document, key, first document with the key).
SHARED, SHARED_COLUMNS = "shared keys", 3
#: Runs of (document, smaller document): the component of every document, and edges for another range.
MEMBERS, HOOKS = "components", "hooks"
#: Runs of (document, range that asks where it points), and of (range, document, where it points).
QUESTIONS, ANSWERS = "questions", "answers"

#: Documents of one range, and rows that a task holds at a time.
SPAN, CHUNK_ROWS = 2**21, 2**20


@dataclass(frozen=True)
class Components:
    """Components of all documents that share a key with another document.

    Args:
        members: by range of documents, a sorted run of (document, smallest document in its component).
        span: documents in a range.
        rounds: number of rounds that were needed.
    """

    members: tuple[Part, ...]
    span: int
    rounds: int

    @property
    def documents(self) -> int:
        """Number of documents that share a key with another document."""
        return sum(part.rows for part in self.members)

    def within(self, low: int, high: int) -> tuple[Part, ...]:
        """Return the runs that contain the documents with low <= number < high."""
        return self.members[low // self.span : max(low, high - 1) // self.span + 1]


def read_members(store: Store, members: Sequence[Part], low: int, high: int) -> tuple[U64, U64]:
    """Return the documents with low <= number < high that are in a component, and their components."""
    found = [(np.empty(0, np.uint64), np.empty(0, np.uint64))]
    for part in members:
        with sorted_runs.SortedRun(store, part, MEMBERS) as opened:
            document, component = opened.slice(low, high)
        found.append((document, component))
    documents, components = (np.concatenate(column) for column in zip(*found, strict=True))
    return documents, components


def most_rounds(documents: int) -> int:
    """Return a limit to the number of rounds, which only a defect can exceed."""
    return (documents.bit_length() + 2) ** 2


def spans(documents: int, span: int) -> list[tuple[int, int]]:
    """Return the half-open ranges of documents, at least one."""
    return [(low, min(low + span, documents)) for low in range(0, max(1, documents), span)]


def connect(ctx: Context, asset: str, shared: tuple[Part, ...], documents: int, span: int) -> Components:
    """Return the components of documents that are connected by shared keys.

    Args:
        asset: name of the asset that the stage writes.
        shared: a few sorted runs of `SHARED`.
        documents: number of documents in the corpus.
        span: documents per task; affects memory use and the number of rounds only.
    """
    step = Step(name=f"{asset}/components", version=VERSION)
    ranges, key = spans(documents, span), keyed(shared)
    items = [Item((f"{low}-{high}", key), _Fold(low, high, span, shared), high - low) for low, high in ranges]
    for number in range(1, most_rounds(documents) + 1):
        label = f"{asset} components, round {number}"
        made = run_items(ctx, step, _fold, items, label=label)
        members = tuple(parts[0] for parts in made)
        questions = narrow(ctx, QUESTIONS, 2, [parts[1] for parts in made if parts[1].rows], label)
        hooks = narrow(ctx, HOOKS, 2, [part for parts in made for part in parts[2:]], label)
        answers = _answered(ctx, asset, members, questions, ranges, label)
        if not hooks and not answers:
            return Components(members, span, number)
        key = keyed((*hooks, *answers))
        items = [
            Item((f"{low}-{high}", mine.blob.sha256, key), _Fold(low, high, span, (), mine, hooks, answers), high - low)
            for (low, high), mine in zip(ranges, members, strict=True)
        ]
    raise AssertionError(f"the components of {documents} documents are not found in {most_rounds(documents)} rounds")


def _answered(
    ctx: Context,
    asset: str,
    members: Sequence[Part],
    questions: tuple[Part, ...],
    ranges: Sequence[tuple[int, int]],
    label: str,
) -> tuple[Part, ...]:
    if not questions:
        return ()
    step, key = Step(name=f"{asset}/components/answer", version=VERSION), keyed(questions)
    items = [
        Item((f"{low}-{high}", key, mine.blob.sha256), _Answer(low, high, questions, mine), high - low)
        for (low, high), mine in zip(ranges, members, strict=True)
    ]
    made = run_items(ctx, step, _answer, items, label=f"{label} (answers)")
    return narrow(ctx, ANSWERS, 3, [part for parts in made for part in parts], label)


@dataclass(frozen=True)
class _Fold:
    """Fold of one range. In the first round, edges come from `shared`; later, from `members` and `hooks`."""

    low: int
    high: int
    span: int
    shared: tuple[Part, ...]
    members: Part | None = None
    hooks: tuple[Part, ...] = ()
    answers: tuple[Part, ...] = ()


def _fold(store: Store, task: _Fold) -> tuple[Part, ...]:
    parent = np.arange(task.low, task.high, dtype=np.uint64)
    present = np.zeros(parent.size, dtype=np.bool_)
    if task.members:
        _resume(store, task, task.members, parent, present)
    hooks, waiting, held = list[Part](), list[tuple[U64, U64]](), 0
    for node, other in _edges(store, task):
        present[node - np.uint64(task.low)] = True
        hooked, target = np.empty(node.size, dtype=np.uint64), np.empty(node.size, dtype=np.uint64)
        count = join_edges(parent, task.low, node, other, hooked, target)
        waiting.append((hooked[:count], target[:count]))
        held += count
        if held >= CHUNK_ROWS:
            hooks.append(_write_hooks(store, waiting))
            waiting, held = [], 0
    if held:
        hooks.append(_write_hooks(store, waiting))
    point_to_roots(parent, task.low)
    document = np.flatnonzero(present).astype(np.uint64) + np.uint64(task.low)
    component = parent[present]
    outside = np.unique(component[component < task.low])
    asker = np.full(outside.size, task.low // task.span, dtype=np.uint64)
    return (
        sorted_runs.write(store, "members.run", MEMBERS, [(document, component)], 2),
        sorted_runs.write(store, "questions.run", QUESTIONS, [(outside, asker)], 2),
        *hooks,
    )


def _write_hooks(store: Store, edges: Sequence[tuple[U64, U64]]) -> Part:
    node, target = (np.concatenate(column) for column in zip(*edges, strict=True))
    order = sorted_runs.in_order(node, target)
    node, target = node[order], target[order]
    distinct = np.ones(node.size, dtype=np.bool_)
    distinct[1:] = (node[1:] != node[:-1]) | (target[1:] != target[:-1])
    return sorted_runs.write(store, "hooks.run", HOOKS, [(node[distinct], target[distinct])], 2)


def _resume(store: Store, task: _Fold, members: Part, parent: U64, present: Bools) -> None:
    """Read where the documents of a range point, and move those whose targets point elsewhere."""
    with sorted_runs.SortedRun(store, members, MEMBERS) as opened:
        document, component = opened.all()
    found = [(np.empty(0, np.uint64), np.empty(0, np.uint64))]
    number = task.low // task.span
    for part in task.answers:
        with sorted_runs.SortedRun(store, part, ANSWERS) as opened:
            _, asked, target = opened.slice(number, number + 1)
        found.append((asked, target))
    asked, target = (np.concatenate(column) for column in zip(*found, strict=True))
    if asked.size:
        order = np.argsort(asked)
        asked, target = asked[order], target[order]
        place = np.minimum(np.searchsorted(asked, component), asked.size - 1)
        component = np.where(asked[place] == component, target[place], component)
    where = document - np.uint64(task.low)
    parent[where], present[where] = component, True


def _edges(store: Store, task: _Fold) -> Iterator[tuple[U64, U64]]:
    for kind, parts in ((SHARED, task.shared), (HOOKS, task.hooks)):
        for part in parts:
            with sorted_runs.SortedRun(store, part, kind) as opened:
                for node, *_, other in opened.chunks(CHUNK_ROWS, task.low, task.high):
                    yield node, other


@dataclass(frozen=True)
class _Answer:
    low: int
    high: int
    questions: tuple[Part, ...]
    members: Part


def _answer(store: Store, task: _Answer) -> tuple[Part, ...]:
    parent = np.arange(task.low, task.high, dtype=np.uint64)
    with sorted_runs.SortedRun(store, task.members, MEMBERS) as opened:
        document, component = opened.all()
    parent[document - np.uint64(task.low)] = component
    made = []
    for part in task.questions:
        with sorted_runs.SortedRun(store, part, QUESTIONS) as opened:
            for document, asker in opened.chunks(CHUNK_ROWS, task.low, task.high):
                target = parent[document - np.uint64(task.low)]
                moved = target != document
                columns = asker[moved], document[moved], target[moved]
                order = sorted_runs.in_order(*columns)
                if order.size:
                    chunk = [column[order] for column in columns]
                    made.append(sorted_runs.write(store, "answers.run", ANSWERS, [chunk], 3))
    return tuple(made)


@compiled
def join_edges(parent: U64, low: int, node: U64, other: U64, hooked: U64, target: U64) -> int:
    """Join the trees of a range of documents by edges, in place.

    `parent` has the parents of the documents from number `low` on; parents are never larger than their children. An
    edge between the trees of two documents below `low` is written to `hooked` (the larger document) and `target`.

    Returns:
        The number of edges written.
    """


@compiled
def point_to_roots(parent: U64, low: int) -> None:
    """Point every document of a range to the root of its tree, or to its first ancestor below `low`."""
