"""The machine that trains in tests which need no real one."""

from __future__ import annotations

from plinth import fingerprint
from plinth.training.attempts import HostFacts

HOST = HostFacts(
    host="node-1",
    version="0.4.0",
    commit="c0ffee" + "0" * 34,
    dirty=False,
    code={name: fingerprint.digest(name) for name in ("plinth", "plinth_registry")},
    distributions=fingerprint.digest("numpy==2"),
    image=f"registry.example/plinth@sha256:{'1' * 64}",
    python="3.11.2",
    system="Linux x86_64",
    cpu="A processor",
    cpus=2,
)
