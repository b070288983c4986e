"""A folder of weights, ours or another's, as a manifest: what it holds is its identity, not where it lies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO

from plinth.compute.context import Context
from plinth.errors import MissingError, SourceError
from plinth.model.hugging_face import CONFIG, INDEX, TOKENIZER
from plinth.records import Manifest, Part
from plinth.storage.uris import open_local, readable

ASSET = "weights"
#: In a cache of the Hugging Face Hub: folders of links into `blobs/` next to it.
SNAPSHOTS = "snapshots"


def weights(ctx: Context, folder: Path) -> Manifest:
    """The model in a folder, copied into the store.

    Raises:
        MissingError: the folder lacks weights in safetensors, a configuration or a tokenizer.
        SourceError: a file is a link out of the folder, off limits, or cannot be read.
    """
    found = {path.name for path in folder.glob("*.safetensors")}
    found |= {name for name in (CONFIG, INDEX, TOKENIZER) if (folder / name).is_file()}
    lacking = [name for name in (CONFIG, TOKENIZER) if name not in found]
    if lacking or not any(name.endswith(".safetensors") for name in found):
        raise MissingError(
            f"{folder} holds no model that can be compared",
            found=", ".join(sorted(found)) or "none of its files",
            expected=f"*.safetensors, {CONFIG} and {TOKENIZER}",
            remedy="write it by `save_pretrained`, with a fast tokenizer",
        )
    parts = []
    for name in sorted(found):
        with ctx.store.staging() as copy:
            with open_file(folder, name) as stream, copy.open("wb") as target:
                shutil.copyfileobj(stream, target)
            parts.append(Part(name=name, blob=ctx.store.put_file(copy)))
    return Manifest(asset=ASSET, step=ASSET, version="1", params={}, inputs={}, parts=tuple(parts))


def open_file(folder: Path, name: str) -> IO[bytes]:
    """A file of the folder. A link may lead to a file of the same folder, or of the download cache that it is in.

    Raises:
        SourceError: it leads elsewhere, is off limits (`storage.off_limits`), or cannot be read.
    """
    path, real = folder / name, (folder / name).resolve()
    home = (folder.parents[1] if folder.parent.name == SNAPSHOTS else folder).resolve()
    if not real.is_relative_to(home):
        raise SourceError(
            f"{path} is not read",
            found=f"a link to {real}",
            expected=f"a file in {home}",
            remedy="put the file itself in its place",
        )
    with readable(str(path), "open"):
        return open_local(str(real), len(real.relative_to(home).parts) - 1)
