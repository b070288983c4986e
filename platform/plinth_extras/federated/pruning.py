"""What an exchange need not keep: tensors that no site, round or coordinator goes back to.

    sent for a round     needed until the round is committed
    momentum             needed until the next round is
    common weights       needed by a site that goes back to a checkpoint, or is audited, and adopts them again

Each contribution says which round's common weights its run may be the first to adopt again. Those of all rounds since
the least of these stay, and of a site that has taken part in no round, all. Signed records stay: they are small, and
name what was averaged by digest.

A killed pruning is taken up by the next: rounds are swept from the oldest that has something left. Does not belong
here: when (coordinator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from plinth.records import Blob
from plinth_extras.federated.exchange import Exchange


def prune(exchange: Exchange, sites: Iterable[str]) -> int:
    """Remove what need not be kept; returns its bytes.

    Args:
        sites: whose runs may go back.

    Raises:
        CheckpointError: a committed round that nobody with the role signed.
        StorageError: a file cannot be removed.
    """
    newest = exchange.newest()
    oldest = min((_goes_back_to(exchange, site, newest) for site in sites), default=newest)
    last = exchange.round(newest)[0] if newest >= 0 else None
    kept = {exchange.round(number)[0].common for number in range(max(0, oldest), newest + 1)}
    kept |= {file for made in exchange.contributions(newest + 1) for file in made.files}
    kept |= {last.momentum} if last is not None and last.momentum is not None else set()

    def sent(number: int) -> list[Blob]:
        files = [file for made in exchange.contributions(number) for file in made.files]
        momentum = exchange.round(number)[0].momentum
        return files if momentum is None else [*files, momentum]

    def common(number: int) -> list[Blob]:
        return [exchange.round(number)[0].common]

    return _sweep(exchange, newest, sent, kept) + _sweep(exchange, oldest - 1, common, kept)


def _goes_back_to(exchange: Exchange, site: str, newest: int) -> int:
    """The oldest round whose common weights a site's run may adopt again, by what it last sent."""
    for number in range(newest, -1, -1):
        if site in exchange.round(number)[0].taken:
            found = exchange.contribution(number, site)
            return 0 if found is None else min(found[0].goes_back_to, number)
    return 0


def _sweep(exchange: Exchange, last: int, named: Callable[[int], list[Blob]], kept: set[Blob]) -> int:
    """Remove what rounds up to `last` name, the oldest first; those before one with nothing left were swept."""
    left = list[Blob]()
    for number in range(last, -1, -1):
        there = [blob for blob in named(number) if blob not in kept and exchange.store.has(blob)]
        if not there and number < last:
            break
        left = [*there, *left]
    gone = list(dict.fromkeys(left))
    for blob in gone:
        exchange.store.remove(blob)
    return sum(blob.bytes for blob in gone)
