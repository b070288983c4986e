"""Learn how likely a text of the extraction engine `blocks+trafilatura` is to fail: the weights in `risk.json`.

    pip install 'plinth[extraction]'
    python tests/benchmarks/learn_risk.py WCXB EXCLUDED.txt RISK.json

WCXB and EXCLUDED.txt are those of `learn_blocks.py`. `page_verdicts.txt` has the pages of its split `dev` that the
policy of `web.yaml` keeps but for `unclear_page`, with a verdict on each text. A text fails if a tenth of it, or a run
of more than two sentences, is foreign to the page, if a third of the page's own text or several parts of it are
missing, or if it only announces other pages. Calls to buy or to book and praise of the site are foreign, also where the
author closes an article with them; WCXB counts most of these as content. Independent readers gave the verdicts on the
551 texts whose risk was at most 0.14 by an earlier model, and again on 83 that new rules changed. The others follow
WCXB's labels, except for 118 that a reader judged.

Texts are those of models that have not seen the page's domain. The table shows what would fail if the riskiest pages
were dropped, by weights that have not seen the domain either.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from learn_blocks import domain, learn, pages

from plinth.corpus.extract.content.engine import BlockEngine
from plinth.corpus.extract.content.risk import NAMES, inputs
from plinth.corpus.extract.fallback import with_fallback
from plinth.corpus.extract.page import Extract
from plinth.corpus.extract.readable import readable_formulas
from plinth.corpus.extract.streamed import in_place
from plinth.corpus.extract.worker import engine
from plinth.corpus.sources.codings import decode
from plinth_text.arrays import F64, I64

VERDICTS = Path(__file__).with_name("page_verdicts.txt")
FOLDS, PENALTY, STEPS = 3, 1.0, 30


def fold(url: str) -> int:
    return zlib.crc32(domain(url).encode()) % FOLDS


def verdicts() -> Iterator[tuple[str, bool]]:
    """Yield the names of the pages, with True for each whose text fails."""
    failed, passed = VERDICTS.read_text().removeprefix("failed:").split("passed:")
    for names, fails in ((failed, True), (passed, False)):
        yield from ((name, fails) for name in names.split())


def examples(folder: Path, engines: list[Extract]) -> tuple[F64, F64, I64]:
    """Return the inputs [pages, inputs] of the model, 1 for each page that fails, and folds."""
    rows = list[tuple[list[float], bool, int]]()
    for name, fails in verdicts():
        url = json.loads((folder / "dev" / "ground-truth" / f"{name}.json").read_text())["url"]
        html = decode(gzip.decompress((folder / "dev" / "html" / f"{name}.html.gz").read_bytes()), "", html=True)
        content = engines[fold(url)](readable_formulas(in_place(html)))
        rows.append((inputs(content.unsure, content.traits), fails, fold(url)))
    found, fails, folds = zip(*rows, strict=True)
    return np.array(found), np.array(fails, float), np.array(folds)


def weights(found: F64, fails: F64) -> F64:
    """Return the weights of a logistic regression, by Newton's method. The penalty is on inputs of variance 1."""
    scale = np.append(1, found[:, 1:].std(axis=0) + 1e-9)
    scaled, penalty, result = found / scale, PENALTY * (np.arange(found.shape[1]) > 0), np.zeros(found.shape[1])
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-scaled @ result))
        slope = scaled.T @ (chance - fails) + penalty * result
        result -= np.linalg.solve((scaled.T * (chance * (1 - chance))) @ scaled + np.diag(penalty), slope)
    return np.asarray(result / scale)


def table(risk: F64, fails: F64) -> Iterator[str]:
    order = np.argsort(risk, kind="stable")
    good = np.cumsum(fails[order] == 0)
    for share in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5):
        kept = int(np.searchsorted(good, (1 - share) * good[-1])) + 1
        failed = int(fails[order[:kept]].sum())
        limit = risk[order[kept - 1]]
        yield f"{share:.0%} of good pages dropped, risk {limit:.3f}: {failed} of {kept} fail, {failed / kept:.1%}"


def main() -> None:
    folder, excluded, target = map(Path, sys.argv[1:])
    learned = list(pages(folder, set(excluded.read_text().split())))
    models = [learn([page for page in learned if fold(page.url) != one]) for one in range(FOLDS)]
    engines = [with_fallback(BlockEngine(model), engine("trafilatura")) for model in models]
    found, fails, folds = examples(folder, engines)
    scores = np.zeros(len(fails))
    for one in range(FOLDS):
        scores[folds == one] = found[folds == one] @ weights(found[folds != one], fails[folds != one])
    print(f"{len(fails)} pages, {fails.sum():.0f} fail", *table(1 / (1 + np.exp(-scores)), fails), sep="\n")
    result = zip(NAMES, weights(found, fails).round(4).tolist(), strict=True)
    target.write_text(json.dumps(dict(result), indent=2) + "\n")


if __name__ == "__main__":
    main()
