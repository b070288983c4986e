"""Train a linear model on hashed words and pairs of words: logistic regression, one label against the rest.

A document's margin is the mean of the rows of its features plus a bias, as in fastText (Joulin et al. 2016), whose
two matrices are multiplied out here. Steps are Adagrad's (Duchi, Hazan and Singer 2011): a row's step shrinks with
the gradients it has seen, so rare words learn as fast as common ones. The damping keeps words seen once from
deciding anything. The epoch with the least loss on documents held back wins.

Documents are visited in an order that their hashes give, one after the other: the result depends on nothing else.
Memory is two tables and the sample. Letters: D documents, F features, R rows, K labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plinth.corpus.models.classify.probabilities import balanced, log_loss, sigmoid
from plinth.records import Frozen
from plinth_text.arrays import F32, F64, I32, I64
from plinth_text.compiled import compiled


class Sgd(Frozen):
    """Steps of training."""

    epochs: int = 10
    rate: float = 0.5
    damping: float = 0.3


@dataclass(frozen=True)
class Ragged:
    """Features of documents: those of d are `rows[starts[d]:starts[d + 1]]`; `labels` [D] are below K."""

    starts: I64
    rows: I32
    labels: I64

    def take(self, chosen: I64) -> Ragged:
        """Some documents, in the order given."""
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], sizes)
        return Ragged(starts, self.rows[at], self.labels[chosen])


@dataclass(frozen=True)
class Linear:
    """A table [R, K] and biases [K], and the loss on held-back documents after every epoch."""

    table: F32
    bias: F32
    losses: tuple[float, ...]


def fit(train: Ragged, held: Ragged, outputs: int, bits: int, sgd: Sgd) -> Linear:
    """The best epoch's model. With one output label 1 is true; else output k is label k against the rest."""
    classes = max(outputs, 2)
    table, bias = np.zeros((1 << bits, outputs), np.float32), np.zeros(outputs, np.float32)
    squares, bias_squares = np.zeros_like(table), np.zeros(outputs, np.float64)
    weights = balanced(train.labels, classes).astype(np.float32)
    best: tuple[F32, F32] | None = None
    losses: list[float] = []
    for epoch in range(sgd.epochs):
        order = _order(train.labels.size, epoch)
        train_epoch(
            train.starts, train.rows, train.labels, weights, order, sgd.rate, sgd.damping, table, bias, squares,
            bias_squares,
        )  # fmt: skip
        losses.append(loss(held, table, bias))
        if best is None or losses[-1] < min(losses[:-1]):
            best = table.copy(), bias.copy()
    assert best is not None
    return Linear(*best, tuple(losses))


def loss(held: Ragged, table: F32, bias: F32) -> float:
    """Mean loss over outputs in nats, classes weighing the same."""
    outputs = bias.size
    probabilities = sigmoid(margins(held, table, bias))
    weights = balanced(held.labels, max(outputs, 2))
    truths = truth(held.labels, outputs)
    return float(np.mean([log_loss(truths[:, k], probabilities[:, k], weights) for k in range(outputs)]))


def truth(labels: I64, outputs: int) -> I64:
    """Zeros and ones, [D, K]."""
    wanted = np.arange(outputs) if outputs > 1 else np.ones(1, np.int64)
    return np.asarray(labels[:, None] == wanted, dtype=np.int64)


def margins(documents: Ragged, table: F32, bias: F32, window: int = 0) -> F64:
    """Margins of documents, [D, K]: those that `features.margins` finds in their texts."""
    out = np.empty((documents.labels.size, bias.size), np.float64)
    find_margins(documents.starts, documents.rows, table, bias, window, out)
    return out


def _order(size: int, epoch: int) -> I64:
    """A permutation for every epoch; the generator is part of numpy's compatibility promise (PCG64)."""
    return np.argsort(np.random.Generator(np.random.PCG64(epoch)).random(size), kind="stable")


@compiled
def train_epoch(
    starts: I64, rows: I32, labels: I64, weights: F32, order: I64, rate: float, damping: float, table: F32, bias: F32,
    squares: F32, bias_squares: F64,
) -> None:  # fmt: skip
    """Learn from every document once, in an order."""


@compiled
def find_margins(starts: I64, rows: I32, table: F32, bias: F32, window: int, out: F64) -> None:
    """Fill in margins. A document's rows are those of its words, then those of its pairs, one fewer."""
