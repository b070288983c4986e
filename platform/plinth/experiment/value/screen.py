"""What a sample says before anything is trained: a question that means nothing, or an answer already.

A source that is too small for its share, or that holds the test text, is refused by name. One that has text enough, of
which too little is new, is answered: no run could have its share of new text. So is one whose text the tokenizer takes
apart: the pipeline would not publish a tokenizer for a bucket like that, and no run with it would begin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plinth.errors import RequestError
from plinth.evaluation import statistics


def needed(share: float, tokens: int, max_epochs: float) -> int:
    """New tokens that a run needs for a share of its text."""
    return math.ceil(share * tokens / max_epochs)


def require_meaning(found: Mapping[str, Any], needs: Mapping[str, int]) -> None:
    """Refuse a source that cannot be asked about.

    Args:
        found: of `value.assess`.
        needs: tokens that its share needs, by size.

    Raises:
        RequestError: it holds documents of the test text, or has too little text for its share.
    """
    if held := found.get("test", {}).get("held", 0):
        raise RequestError(
            "the source overlaps the test text",
            found=f"{held} of {found['test']['documents']} documents of the test text stand in the sample",
            expected="test text that the source does not have: the arm with it would be scored on what it was given",
            remedy="take other test text, or remove these documents from the source",
        )
    nominal, most = found["effective"]["factors"]["nominal_tokens"], max(needs.values())
    if nominal < most:
        raise RequestError(
            "the source is too small for its share",
            found=f"{nominal:,.0f} tokens, of which nothing has been dropped yet",
            expected=f"at least {most:,}",
            remedy="lower `source.share`, train fewer tokens, or allow more passes with mixture.max_epochs",
        )


def refusal(found: Mapping[str, Any], needs: Mapping[str, int], least_rate: float) -> str:
    """Why no arm need be trained, or nothing.

    Args:
        least_rate: bytes per token that the tokenizer's audit asks of every bucket.
    """
    most, need = most_new(found), max(needs.values())
    if most < need:
        nominal = found["effective"]["factors"]["nominal_tokens"]
        return (
            f"of its {nominal:,.0f} tokens at most {most:,.0f} pass the policy and are new (95%), and its share of a "
            f"run needs {need:,}"
        )
    rate = found["tokenizer"]["bytes_per_token"] if found["tokenizer"] else {"value": 0.0}
    if rate["value"] > 0 and rate["high"] < least_rate:
        return (
            f"its text has at most {rate['high']:.3g} bytes per token (95%) under the tokenizer of the text without "
            f"it, and a bucket must have {least_rate:g} (tokenizer.min_bytes_per_token)"
        )
    return ""


def most_new(found: Mapping[str, Any]) -> float:
    """Upper end of the 95% interval of its effective tokens; of a sample without any, by the documents of it."""
    tokens, documents = found["effective"]["tokens"], found["sample"]["documents"]
    if tokens and tokens["value"] > 0:
        return float(tokens["high"])
    if not documents or found["sample"]["source_bytes"] >= found["sample"]["of_bytes"]:
        return 0.0  # all of it was read
    share = statistics.upper_share(0, documents)
    return share * float(found["effective"]["factors"]["nominal_tokens"])
