"""Prototypes of kernels, read from their C files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: C type and numpy type of the elements of a view.
ELEMENTS = {
    "bool": ("bool", "bool"), "u8": ("uint8_t", "u1"), "u16": ("uint16_t", "u2"), "u32": ("uint32_t", "u4"),
    "u64": ("uint64_t", "u8"), "i8": ("int8_t", "i1"), "i16": ("int16_t", "i2"), "i32": ("int32_t", "i4"),
    "i64": ("int64_t", "i8"), "f32": ("float", "f4"), "f64": ("double", "f8"),
}  # fmt: skip
_SCALARS = {c for c, _ in ELEMENTS.values()}
_PROTOTYPE = re.compile(r"^KERNEL\s+(\w+)\s+(\w+)\s*\(([^)]*)\)\s*\{", re.MULTILINE)
_PARAMETER = re.compile(r"(\w+)\s*(\*?)\s*(\w+)")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: a scalar, a view of an array, or (`result`) a value that the kernel gives back.

    Args:
        element: key of `ELEMENTS` for a view, else "".
        scalar: C type for a scalar or a result, else "".
    """

    name: str
    element: str = ""
    scalar: str = ""
    rows: bool = False
    written: bool = False
    result: bool = False

    def flat(self) -> list[str]:
        """Parameters of the exported function: a view is its address and its lengths."""
        if not self.element:
            return [f"{self.scalar} {'*' if self.result else ''}{self.name}"]
        pointer = f"{'' if self.written else 'const '}{ELEMENTS[self.element][0]} *{self.name}"
        return [pointer, *(f"int64_t {self.name}_{length}" for length in self.lengths)]

    @property
    def lengths(self) -> tuple[str, ...]:
        return ("rows", "columns") if self.rows else ("size",)

    def argument(self) -> str:
        """The argument that the exported function passes to the kernel."""
        if not self.element:
            return self.name
        kind = f"{self.element}{'_rows' if self.rows else ''}_{'out' if self.written else 'in'}"
        return f"({kind}){{{', '.join([self.name, *(f'{self.name}_{each}' for each in self.lengths)])}}}"


@dataclass(frozen=True)
class Prototype:
    """A kernel of a C file; `symbol` is its name in the library."""

    module: str
    name: str
    returns: str
    parameters: tuple[Parameter, ...]

    @property
    def symbol(self) -> str:
        return f"{self.module.replace('.', '_')}__{self.name}"

    def declaration(self) -> str:
        flat = [each for parameter in self.parameters for each in parameter.flat()]
        return f"{self.returns} {self.symbol}({', '.join(flat) or 'void'})"

    def export(self) -> str:
        """C source of the exported function."""
        call = f"{self.name}({', '.join(each.argument() for each in self.parameters)})"
        body = f"{call};" if self.returns == "void" else f"return {call};"
        return f"__attribute__((visibility(\"default\")))\n{self.declaration()} {{ {body} }}\n"


def prototypes(file: Path, module: str) -> Iterator[Prototype]:
    """Kernels of a C file, in its order.

    Raises:
        ValueError: a parameter has a type that no kernel takes.
    """
    for returns, name, listed in _PROTOTYPE.findall(file.read_text()):
        given = [each.strip() for each in listed.split(",") if each.strip() not in ("", "void")]
        yield Prototype(module, name, returns, tuple(_parameter(each, file) for each in given))


def _parameter(text: str, file: Path) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match:
        kind, star, name = match.groups()
        element, _, rest = kind.partition("_")
        if kind in _SCALARS:
            return Parameter(name, scalar=kind, result=bool(star))
        if element in ELEMENTS and rest in ("in", "out", "rows_in", "rows_out") and not star:
            return Parameter(name, element, rows=rest.startswith("rows"), written=rest.endswith("out"))
    raise ValueError(f"{file}: parameter '{text}': expected a scalar, a view such as u8_in, or a pointer to a result")
