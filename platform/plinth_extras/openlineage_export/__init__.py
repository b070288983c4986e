"""OpenLineage: an event when an asset is started, published or blocked, with its inputs and its version.

    events    the events of an asset, in the classes of the project's own client

The client's own settings choose where events go: its environment variables (`OPENLINEAGE_URL`, `OPENLINEAGE__…`), or a
file (`OPENLINEAGE_CONFIG`, or `~/.openlineage/openlineage.yml`). Nothing is sent without one of them. A file in the
working directory, which the client would also read, is ignored. The orchestrator sends, in `plinth run` as well as in
Dagster's own processes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from plinth.extensions import late, require
from plinth.operation.asset_listeners import AssetListener

#: Variables without which the client prints events, except those that configure a transport by parts.
_VARIABLES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")


def configured() -> bool:
    """Return True if the environment names a transport and does not disable OpenLineage."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    named = any(os.environ.get(name) for name in _VARIABLES)
    by_parts = any(name.startswith("OPENLINEAGE__TRANSPORT__") for name in os.environ)
    return named or by_parts or settings_file() is not None


def settings_file() -> Path | None:
    """Return the file with the client's settings: that of the environment, or else that of the user's home."""
    given = os.environ.get("OPENLINEAGE_CONFIG")
    places = ([Path(given)] if given else []) + [Path.home() / ".openlineage" / "openlineage.yml"]
    return next((path for path in places if path.is_file()), None)


def _notify(update: Any) -> None:
    require("openlineage.client", "openlineage")
    late(f"{__name__}.events:send")(update)


LISTENER = AssetListener("openlineage", configured, _notify)
