"""Exceptions that report what was found, what was expected and what to do.

If an exception ends a command, `exit_code` is the exit status of the command.
"""

from __future__ import annotations


class ExplainedError(Exception):
    """Error with the failure, the values found and expected, and the remedy.

    Args:
        what: one sentence about the failure, which names the file, key or asset.
        found: actual value.
        expected: expected value.
        remedy: next action for the reader.
    """

    exit_code = 1

    def __init__(self, what: str, *, found: object = None, expected: object = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what, self.found, self.expected, self.remedy = what, found, expected, remedy

    def __str__(self) -> str:
        rows = [self.what]
        for label, value in (("found", self.found), ("expected", self.expected), ("do", self.remedy)):
            if value is not None:
                rows.append(f"  {label + ':':<10}{value}")
        return "\n".join(rows)

    @property
    def brief(self) -> str:
        """Failure and found value, in one line."""
        found = "" if self.found is None else str(self.found)
        return f"{self.what}: {found}" if found else self.what

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries; the default protocol would drop the keyword fields, and what
        # was found may be an exception that cannot be pickled.
        found, expected = (value if value is None else str(value) for value in (self.found, self.expected))
        return _rebuild, (type(self), self.what, found, expected, self.remedy)


def _rebuild(
    kind: type[ExplainedError], what: str, found: object, expected: object, remedy: str | None
) -> ExplainedError:
    return kind(what, found=found, expected=expected, remedy=remedy)


class CompilerError(ExplainedError):
    """Error for a kernel that does not compile."""

    exit_code = 6


class NoCompilerError(CompilerError):
    exit_code = 3


class ModelFileError(ExplainedError):
    """Error for a model file that cannot be read, or is damaged."""

    exit_code = 4


class PrivateFolderError(ExplainedError):
    """Error for a private folder that another user could have written to."""

    exit_code = 5
