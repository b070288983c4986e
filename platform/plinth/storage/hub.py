"""`hf://datasets/ORG/NAME@REVISION/PATH`: files of the Hugging Face Hub, or of what `HF_ENDPOINT` names.

A branch or tag is resolved to its commit once, when it is listed: what is read afterwards is of that commit, whatever
is pushed meanwhile. Credentials are those of the Hub's own client (`HF_TOKEN`, `hf auth login`).
"""

from __future__ import annotations

import os
import re
from typing import Any

SCHEME = "hf"
_COMMIT = re.compile(r"hf://[^@]*@([0-9a-f]{40})(?:/|$)")


def open_hub() -> Any:
    """The Hub as a file system.

    Raises:
        ImportError: its client is not installed.
    """
    from huggingface_hub import HfFileSystem

    return HfFileSystem(endpoint=os.environ.get("HF_ENDPOINT") or None)


def pinned(hub: Any, uri: str) -> str:
    """The same place at the commit that its revision names now.

    Raises:
        OSError: there is no such repository or revision.
    """
    if revision_of(uri):
        return uri
    place = hub.resolve_path(uri)
    commit = hub._api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision).sha
    return f"hf://{place.repo_type}s/{place.repo_id}@{commit}/{place.path_in_repo}".rstrip("/")


def revision_of(uri: str) -> str:
    """The commit that an address is pinned to; empty where it names none."""
    found = _COMMIT.match(uri)
    return found[1] if found else ""
