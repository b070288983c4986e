"""Advice on a mixture before training: streams with too little text, and the change that would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Repeating text up to about this often is almost as good as new text, beyond it is worth less and less
#: (Muennighoff et al., "Scaling Data-Constrained Language Models", arXiv:2305.16264).
GOOD_EPOCHS = 4.0
NEAR = 0.9
RARELY = 0.01


def advice(stats: Mapping[str, Any]) -> list[str]:
    """Sentences for people, the most important first; empty where none applies."""
    return [*_capped(stats), *_repeated(stats), *_near(stats), *_rarely_used(stats), *_inexact(stats)]


def _capped(stats: Mapping[str, Any]) -> Iterator[str]:
    width = stats["sequence_tokens"]
    for name, sequences in stats["capped"].items():
        own = stats["buckets"][name]
        lacking = sequences / max(own["max_epochs"], 1.0)
        yield (
            f"{name} reached its bound of {own['max_epochs']:g} epochs: {sequences * width:,.0f} tokens of its weight "
            f"went to other streams. {lacking * width:,.0f} more tokens of text, or a bound of "
            f"{_epochs_asked(own, sequences):.2f} epochs, would give it its full weight."
        )


def _epochs_asked(own: Mapping[str, Any], sequences: float) -> float:
    return float((own["needed"] + sequences) / own["sequences"]) if own["sequences"] else float("inf")


def _repeated(stats: Mapping[str, Any]) -> Iterator[str]:
    width = stats["sequence_tokens"]
    for name, own in stats["buckets"].items():
        if own["epochs"] > GOOD_EPOCHS:
            text = (own["needed"] / GOOD_EPOCHS - own["sequences"]) * width
            yield (
                f"{name} is repeated {own['epochs']:.1f} times; beyond {GOOD_EPOCHS:g} repetition teaches less and "
                f"less. {text:,.0f} more tokens of text, or weights lowered to {GOOD_EPOCHS / own['epochs']:.2f} of "
                "what they are, would keep it there."
            )


def _near(stats: Mapping[str, Any]) -> Iterator[str]:
    for name, own in stats["buckets"].items():
        if name in stats.get("planted", ()):
            continue
        if NEAR * own["max_epochs"] < own["epochs"] <= GOOD_EPOCHS and name not in stats["capped"]:
            slack = own["max_epochs"] / own["epochs"] - 1
            yield (
                f"{name} needs {own['epochs']:.2f} of at most {own['max_epochs']:g} epochs: a run {slack:.0%} longer, "
                "or as much less text, would be refused."
            )


def _rarely_used(stats: Mapping[str, Any]) -> Iterator[str]:
    for name, own in stats["buckets"].items():
        if own["sequences"] and 0 < own["epochs"] < RARELY:
            yield f"{name} is hardly seen: {own['epochs']:.2%} of its text. More weight or a longer run would use it."


def _inexact(stats: Mapping[str, Any]) -> Iterator[str]:
    realised = stats["realised"]
    if not realised["within"]:
        yield (
            f"{realised['stream']} is {realised['max_share_error']:.3%} from its share in the 1,000 blocks from "
            f"sequence {realised['first']:,} on; a larger mixture.block_sequences brings it nearer."
        )
