"""The effective token budget: the share of the nominal text that is worth training on, every factor as measured.

The formula stands in `funnel`, which fills it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.corpus.sources.record import SEEN_BEFORE, damage
from plinth.records import Manifest, bucket_of


def padding(mixture: Manifest | None, bucket: str | None = None) -> float:
    """r_pad of the whole run, or of the sequences of one bucket's streams; 0 before there is a mixture."""
    if mixture is None:
        return 0.0
    if bucket is None:
        return float(mixture.stats["packing"]["r_pad"])
    streams = [own["packing"] for name, own in mixture.stats["buckets"].items() if bucket_of(name) == bucket]
    targets = sum(packing["targets"] for packing in streams)
    return sum(packing["padding"] + packing["masked"] for packing in streams) / targets if targets else 0.0


def effective(
    documents: Mapping[str, Any], stages: list[dict[str, Any]], trained_bytes: int, tokens: int, r_pad: float
) -> dict[str, float]:
    """D_eff with every factor as measured, in bytes of text and, once there are tokens, in tokens.

    Args:
        documents: counts of the documents stage.
        stages: the rows of the funnel.
        trained_bytes: curated text that may be trained on.
        tokens: what it became; 0 before there are shards.
        r_pad: share of padding.
    """
    rows = {row["stage"]: row for row in stages}
    # Exclusions do not count: what is no document, and text that the illegal-content gate stopped.
    failed = damage(documents["rejects"])
    parsed = documents["documents"] + documents["rejects"].get(SEEN_BEFORE, 0)
    rho_parse = _share(parsed, parsed + failed)
    text = documents["text_bytes"] + documents["seen_before_bytes"]
    kept, deduplicated = rows["policy"]["bytes_out"], rows["holdout"]["bytes_in"]
    rho_quality = _share(kept, documents["text_bytes"])
    r_dup = 1.0 - _share(deduplicated, kept) * _share(documents["text_bytes"], text)
    nominal = text / rho_parse if rho_parse else 0.0
    rho_rest = _share(trained_bytes, deduplicated)
    d_eff = nominal * (1 - r_dup) * (1 - r_pad) * rho_parse * rho_quality * rho_rest
    tokens_per_byte = tokens / trained_bytes if trained_bytes else 0.0
    return {
        "nominal_bytes": nominal,
        "rho_parse": rho_parse,
        "rho_quality": rho_quality,
        "r_dup": r_dup,
        "r_pad": r_pad,
        "rho_rest": rho_rest,
        "effective_bytes": d_eff,
        "tokens_per_byte": tokens_per_byte,
        "nominal_tokens": nominal * tokens_per_byte,
        "effective_tokens": d_eff * tokens_per_byte,
    }


def _share(part: float, whole: float) -> float:
    """A part of a whole; all of it where there is nothing."""
    return part / whole if whole else 1.0
