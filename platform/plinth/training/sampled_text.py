"""`BUCKET/sampled`: documents that a model writes, from the beginning of a text until it ends it.

    teacher, numbers of documents -> blocks of one size -> drawn tokens -> JSON lines, a part a block

A block's draws have a key of their own, of seed and block: what is written depends on no number of threads, and more
documents leave those before as they are. A block is recorded when it is done; what fails goes on behind it. Batches are
those of a block, so that sums round the same.
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

#: Documents of a block. Another number is another `VERSION`.
BLOCK = 64


def run(ctx: Context, bucket: str, params: SampledText, teacher: Manifest) -> Manifest:
    """Sample the documents; stats: `documents`, `ended` (by the model itself), `text_bytes`.

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
        from plinth.evaluation.engine.client import ModelEngine  # loads Arrow, which the stage's name needs not

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
    """Return the sampled documents as the files of the bucket's only source."""
    files = [
        SourceFile(uri=str(store.located(part.blob)), name=part.name, bytes=part.blob.bytes, sha256=part.blob.sha256)
        for part in made.parts
    ]
    return Inventory(files=tuple((0, file) for file in files))


def _sampling(params: SampledText, first: int) -> Sampling:
    """Return the draws of the block that begins with a document."""
    own = hashlib.blake2b(f"{params.seed}:{first}".encode(), digest_size=8).digest()
    fields = params.model_dump(include={"max_tokens", "temperature", "top_p"})
    return Sampling(**fields, seed=int.from_bytes(own, "big") >> 1)


def _part(store: Store, teacher: Manifest, first: int, written: Iterable[Generated]) -> Part:
    """Return the lines of a block: text, address, and stop reason."""
    rows = [
        {"text": one.text, "uri": f"model://{teacher.digest[:16]}/{number}", "ended": one.ended}
        for number, one in enumerate(written, first)
    ]
    data = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode("utf-8", "backslashreplace")
    ended = sum(row["ended"] == "end_of_text" for row in rows)
    stats = {"ended": ended, "text_bytes": sum(len(str(row["text"]).encode()) for row in rows)}
    return Part(name="part.jsonl", blob=store.put_bytes(data), rows=len(rows), stats=stats)
