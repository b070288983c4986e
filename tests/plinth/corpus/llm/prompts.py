"""A prompt as a published list."""

from plinth.compute.context import Context, manifest
from plinth.records import Manifest, Part, Step


def prompt_list(ctx: Context, text: bytes = b"Rate {text}!") -> Manifest:
    """The list `lists/rate`."""
    part = Part(name="rate.md", blob=ctx.store.put_bytes(text))
    return manifest("lists/rate", Step(name="lists", version="1"), {}, [part])
