"""The built-in probes by family."""

from __future__ import annotations

from collections.abc import Callable

from plinth.evaluation.probes.builtin import code, knowledge, languages, long_context, maths, safety
from plinth.evaluation.probes.item import ProbeItem
from plinth.evaluation.probes.parameters import Family

#: Version of all built-in items; raised with any change of one.
VERSION = "1"

BUILDERS: dict[Family, Callable[[], list[ProbeItem]]] = {
    "knowledge": knowledge.build,
    "code": code.build,
    "maths": maths.build,
    "long_context": long_context.build,
    "languages": languages.build,
    "safety": safety.build,
}
