"""A folder of weights, ours or another's, as a manifest: what it holds is its identity, not where it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.model.hugging_face import CONFIG, INDEX, TOKENIZER
from plinth.records import Manifest, Part

ASSET = "weights"


def weights(ctx: Context, folder: Path) -> Manifest:
    """The model in a folder, copied into the store.

    Raises:
        MissingError: the folder lacks weights in safetensors, a configuration or a tokenizer.
    """
    found = {path.name: path for path in sorted(folder.glob("*.safetensors"))}
    found |= {name: folder / name for name in (CONFIG, INDEX, TOKENIZER) if (folder / name).is_file()}
    lacking = [name for name in (CONFIG, TOKENIZER) if name not in found]
    if lacking or not any(name.endswith(".safetensors") for name in found):
        raise MissingError(
            f"{folder} holds no model that can be compared",
            found=", ".join(sorted(found)) or "none of its files",
            expected=f"*.safetensors, {CONFIG} and {TOKENIZER}",
            remedy="write it by `save_pretrained`, with a fast tokenizer",
        )
    parts = []
    for name, path in sorted(found.items()):
        with ctx.store.staging() as copy:
            shutil.copyfile(path, copy)
            parts.append(Part(name=name, blob=ctx.store.put_file(copy)))
    return Manifest(asset=ASSET, step=ASSET, version="1", params={}, inputs={}, parts=tuple(parts))
