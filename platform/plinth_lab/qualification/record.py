"""Record of a qualification: its figures, each next to a published one, and its signed log.

qualifications/00001.json    one record: a record of a signed log, signed as `evaluator`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from pydantic import Field

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.launch.devices import DEVICES, Device, called
from plinth.records import Frozen
from plinth.report.page import template
from plinth.storage.atomic import write_bytes
from plinth.training.attempts import HostFacts
from plinth.trust.dsse import EVALUATOR
from plinth.trust.log_record import LogRecord
from plinth.trust.signed_log import SignedLog

State = Literal["ok", "low", "failed", "not measured"]

#: Lowest share of a reference that is not reported as low, by kind of reference. Chosen, not measured: a data sheet
#: states a peak that no program reaches, and a published speed was reached by a program.
LOWEST: Final[Mapping[str, float]] = {"data sheet": 0.6, "published": 0.8}

#: Published tokens per second and GPU on H100, by preset and precision: OLMo-core (1B) and torchtitan (8B).
PUBLISHED: Final[Mapping[tuple[str, str], tuple[float, str]]] = {
    ("1b", "bf16"): (47_000.0, "OLMo-core, H100"),
    ("8b", "bf16"): (6_667.0, "torchtitan, H100"),
    ("8b", "fp8"): (8_532.0, "torchtitan, H100"),
}
#: Devices that the published speeds were measured on.
PUBLISHED_ON: Final = "h100"


class Figure(Frozen):
    """One measured figure.

    Attributes:
        value: None if it was not measured.
        reference: data sheet's or published figure in the same unit, or None.
        reference_kind: `data sheet` or `published`, with its source in `source`.
        note: reason of a failure or of a missing measurement, or how the figure was measured.
    """

    section: str
    name: str
    value: float | None = None
    unit: str = ""
    reference: float | None = None
    reference_kind: str = ""
    source: str = ""
    state: State = "ok"
    note: str = ""

    @property
    def share(self) -> float | None:
        """Measured share of the reference."""
        return None if self.value is None or not self.reference else self.value / self.reference


def figure(
    section: str, name: str, value: float, unit: str, reference: tuple[float, str, str] | None = None, note: str = ""
) -> Figure:
    """Return a measured figure. It is `low` if it is too small a share of its reference.

    Args:
        reference: (value, kind, source); kind is a key of `LOWEST`.
    """
    if reference is None:
        return Figure(section=section, name=name, value=value, unit=unit, note=note)
    against, kind, source = reference
    return Figure(
        section=section, name=name, value=value, unit=unit, reference=against, reference_kind=kind, source=source,
        state="ok" if value >= LOWEST[kind] * against else "low", note=note,
    )  # fmt: skip


def missing(section: str, name: str, why: str, state: State = "not measured") -> Figure:
    """Return a figure without a value, with the reason."""
    return Figure(section=section, name=name, state=state, note=why)


def sheet_of(gpu: str) -> tuple[str, Device] | None:
    """Return the data sheet of a GPU by the driver's name, or None."""
    name = called(gpu)
    return None if name is None else (name, DEVICES[name])


class Qualification(Frozen):
    """Content of a qualification's signed record."""

    host: HostFacts
    driver: str = Field(description="Version of the GPU driver, or empty.")
    device: str
    count: int = Field(ge=1, description="GPUs, or ranks on a CPU.")
    figures: tuple[Figure, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Figure, ...]:
        """Figures whose measurement or check failed."""
        return tuple(one for one in self.figures if one.state == "failed")

    @property
    def low(self) -> tuple[Figure, ...]:
        """Figures far below their reference."""
        return tuple(one for one in self.figures if one.state == "low")

    def sections(self) -> Iterator[tuple[str, list[Figure]]]:
        """Yield the figures by section, in order."""
        for section in dict.fromkeys(one.section for one in self.figures):
            yield section, [one for one in self.figures if one.section == section]


QUALIFICATIONS: Final = SignedLog("qualifications", (EVALUATOR,), keeps_revoked=True)


def append(ctx: Context, made: Qualification) -> LogRecord:
    """Sign a qualification, and append it to the workspace's log of qualifications.

    Raises:
        SignatureError: the log fails verification, or this machine has no evaluator key.
        ConflictError: another process has written the same record number.
    """
    body = made.model_dump(mode="json")
    return QUALIFICATIONS.append(ctx, body, {f"qualification/{made.host.host}": fingerprint.digest(body)}, EVALUATOR)


def write(ctx: Context, made: Qualification, signed: str) -> str:
    """Write the page of a qualification, and return its path.

    Args:
        signed: name of the signed record, or the reason why there is none.
    """
    path = ctx.workspace.reports / f"qualification-{fingerprint.digest(made.host.host)[:8]}.html"
    title = f"Qualification of {made.host.host}"
    write_bytes(path, template("page.html.j2", __package__).render(made=made, record=signed, title=title).encode())
    return str(path)
