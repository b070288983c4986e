"""Compare profiles named after datatrove with datatrove as released: verdicts on real documents by style, and speed.

datatrove runs as it is installed, with its own English tokenizer (spaCy, blank, nothing to download). The documents are
this machine's: documentation, manual pages, package descriptions, web pages, source code, lists, licenses and other
languages. The profiles at white space are compared with the same filters, to show what the splitter decides.

    python tests/benchmarks/bench_agreement.py [--each 900] [--characters 5000]

Exits with 1 when a profile agrees on fewer than 99% of the verdicts.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")

from cpu import seconds  # noqa: E402

from tests.agreement.profiles import verdicts  # noqa: E402
from tests.agreement.released import FILTERS, judged, released  # noqa: E402
from tests.agreement.styles import documents  # noqa: E402

REQUIRED = 0.99
RESULTS = Path(__file__).parent / "results" / "agreement_released.json"
#: Profiles on words separated by white space, compared with the profile as released.
WHITE_SPACE = {
    "gopher/datatrove": "gopher/white-space",
    "c4/datatrove": "c4/white-space",
    "fineweb/datatrove": "fineweb/white-space",
}


def compared(ours: Sequence[str], theirs: Sequence[str], styles: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Shares of equal verdicts and reasons, over all documents and by style, with examples of what differs."""
    equal = [(one == "keep") == (other == "keep") for one, other in zip(ours, theirs, strict=True)]
    by_style = {
        style: [same for same, of in zip(equal, styles, strict=True) if of == style] for style in dict.fromkeys(styles)
    }
    apart = [(text, one, other) for text, one, other, same in zip(texts, ours, theirs, equal, strict=True) if not same]
    return {
        "verdicts": sum(equal) / len(equal),
        "reasons": sum(one == other for one, other in zip(ours, theirs, strict=True)) / len(ours),
        "kept": sum(other == "keep" for other in theirs),
        "styles": {style: sum(same) / len(same) for style, same in by_style.items()},
        "dropped": dict(Counter(other for other in theirs if other != "keep").most_common()),
        "apart": dict(Counter(f"ours {one}, theirs {other}" for _, one, other in apart)),
        "examples": [{"text": text[:200], "ours": one, "theirs": other} for text, one, other in apart[:10]],
    }


def speeds(profile: str, texts: Sequence[str]) -> dict[str, float]:
    """MB/s of one core: ours, and datatrove's, which forgets the words of the profile measured before."""
    from datatrove.utils.text import split_into_parts

    judge = released(profile)
    judge(texts[0])
    some = texts[:: max(1, len(texts) // 300)]
    split_into_parts.cache_clear()
    size, whole = (sum(len(text.encode()) for text in chosen) / 1e6 for chosen in (some, texts))
    theirs = seconds(lambda: [judge(text) for text in some])
    ours = min(seconds(lambda: verdicts(profile, texts)) for _ in range(3))
    return {"ours": whole / ours, "theirs": size / theirs, "ratio": whole / ours * theirs / size}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=900, help="documents of a style, at most")
    parser.add_argument("--characters", type=int, default=5000, help="of a document, at most")
    options = parser.parse_args()
    sample = documents(options.each, options.characters)
    texts = [text for some in sample.values() for text in some]
    styles = [style for style, some in sample.items() for _ in some]
    theirs = judged(texts)
    result: dict[str, Any] = {
        "documents": {style: len(some) for style, some in sample.items()},
        "megabytes": round(sum(len(text.encode()) for text in texts) / 1e6, 2),
        "profiles": {},
        "white space": {},
    }
    for profile in FILTERS:
        entry = compared([reason for reason, _ in verdicts(profile, texts)], theirs[profile], styles, texts)
        result["profiles"][profile] = entry | {"speed": speeds(profile, texts)}
        if profile in WHITE_SPACE:
            other = [reason for reason, _ in verdicts(WHITE_SPACE[profile], texts)]
            result["white space"][WHITE_SPACE[profile]] = compared(other, theirs[profile], styles, texts)
    RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for kind in ("profiles", "white space"):
        for profile, entry in result[kind].items():
            speed = entry.get("speed", {})
            print(f"{profile:<22}{entry['verdicts']:8.2%} of {len(texts)}, kept {entry['kept']}", speed, entry["apart"])
    if any(entry["verdicts"] < REQUIRED for entry in result["profiles"].values()):
        raise SystemExit(f"below {REQUIRED:.0%}")


if __name__ == "__main__":
    main()
