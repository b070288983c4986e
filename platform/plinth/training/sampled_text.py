"""Asset `BUCKET/sampled`: documents that a model generates from an empty prompt until it ends the text.

    teacher, numbers of documents -> blocks of one size -> sampled tokens -> JSON lines, one part per block

Each block has its own random key, derived from the seed and the block's number. Results therefore do not depend on the
number of threads, and more documents do not change earlier documents. Finished blocks are recorded, so a failed stage
resumes after the last finished block. Batches never cross blocks, so sums are always rounded the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from plinth.compute.context import Context, manifest, renamed
from plinth.corpus.sources.files import STAGE, SampledText
from plinth.corpus.sources.inventory import Inventory
from plinth.evaluation.engine.records import Generated, Sampling
from plinth.records import Manifest, Part, Step
from plinth.storage.files import SourceFile
from plinth.storage.store import Store

VERSION = "1"

#: Documents per block. Bump `VERSION` with this number.
BLOCK = 64


def run(ctx: Context, bucket: str, params: SampledText, teacher: Manifest) -> Manifest:
    """Sample documents from a model and return their manifest.

    Its stats are `documents`, `ended` (documents with an end-of-text token) and `text_bytes`.

    Raises:
        CheckpointError, TrainingError: the model cannot be loaded or sampled from.
    """
    drawn = params.model_dump(mode="json", exclude={"documents"})
    step = Step(name=STAGE, version=VERSION, params=drawn)
    blocks = [(first, min(first + BLOCK, params.documents)) for first in range(0, params.documents, BLOCK)]
    keys = [step.key([teacher.digest, f"{first}-{stop}"]) for first, stop in blocks]
    found = ctx.cache.get_many(keys)
    missing = [index for index, parts in enumerate(found) if parts is None]
    if missing:
        from plinth.evaluation.engine.client import ModelEngine  # loads Arrow, not needed for the stage's name

        with ModelEngine.of(ctx, teacher, label=f"{bucket}/{STAGE}") as engine:
            for index in missing:
                first, stop = blocks[index]
                written = engine.generate([()] * (stop - first), _sampling(params, first))
                found[index] = ctx.cache.put(keys[index], (_part(ctx.store, teacher, first, written),))
    parts = renamed((own for parts in found if parts is not None for own in parts), "part")
    stats = {
        "documents": params.documents,
        "ended": sum(part.stats["ended"] for part in parts),
        "text_bytes": sum(part.stats["text_bytes"] for part in parts),
    }
    whole = step.model_copy(update={"params": params.model_dump(mode="json")})
    return manifest(f"{bucket}/{STAGE}", whole, {f"{bucket}/teacher": teacher}, parts, stats)


def inventory(store: Store, made: Manifest) -> Inventory:
    """Return the sampled documents as an inventory whose only source contains all files."""
    files = [
        SourceFile(uri=str(store.located(part.blob)), name=part.name, bytes=part.blob.bytes, sha256=part.blob.sha256)
        for part in made.parts
    ]
    return Inventory(files=tuple((0, file) for file in files))


def _sampling(params: SampledText, first: int) -> Sampling:
    """Return the sampling parameters of the block that starts with document number `first`."""
    own = hashlib.blake2b(f"{params.seed}:{first}".encode(), digest_size=8).digest()
    fields = params.model_dump(include={"max_tokens", "temperature", "top_p"})
    return Sampling(**fields, seed=int.from_bytes(own, "big") >> 1)


def _part(store: Store, teacher: Manifest, first: int, written: Iterable[Generated]) -> Part:
    """Return the part of the manifest with the lines of a block. Each line has the text, address and stop reason of a
    document."""
    rows = [
        {"text": one.text, "uri": f"model://{teacher.digest[:16]}/{number}", "ended": one.ended}
        for number, one in enumerate(written, first)
    ]
    data = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode("utf-8", "backslashreplace")
    ended = sum(row["ended"] == "end_of_text" for row in rows)
    stats = {"ended": ended, "text_bytes": sum(len(str(row["text"]).encode()) for row in rows)}
    return Part(name="part.jsonl", blob=store.put_bytes(data), rows=len(rows), stats=stats)
