"""Every exception Plinth raises on purpose.

    PlinthError
    ├── RecipeError          2  the recipe is wrong: file, key, line
    │   └── ExtensionError      an installed package's annotator, reader, gate or launcher cannot be used
    ├── RequestError         2  what was asked for means nothing, or needs a confirmation
    ├── MissingError         3  something named does not exist (asset, run, document)
    ├── SourceError          4  a source cannot be read or lacks required terms
    ├── StorageError         5  bytes at rest
    │   ├── IntegrityError      digest, length or format differ from what was recorded
    │   ├── DiskFullError       no space left
    │   ├── ConflictError       another process wrote the same reference first
    │   └── WorkspaceError      the workspace cannot be used
    ├── StageError           6  a stage failed by name
    │   ├── RejectRateError     more rejects than the recipe allows
    │   ├── RemovalRateError    a learned rule removes too much of text that is trusted
    │   ├── CheckFailedError    a blocking check failed before publication
    │   └── WorkerError         a worker died or raised
    ├── TrainingError        7  training, launching, checkpoints
    │   ├── CheckpointError     not committed, torn, or not what it claims
    │   ├── ResumeError         a checkpoint does not belong to this run
    │   └── LaunchError         a job could not be submitted or found
    ├── TrustError           8  signature, lineage, gates, approval
    │   ├── SignatureError
    │   ├── LineageError
    │   └── GateError
    └── RegistryError        9  the model registry's server cannot be started or reached

The number is the exit status of the command line for that branch.
"""

from __future__ import annotations


class PlinthError(Exception):
    """What was found, what was expected, and what to do about it.

    Args:
        what: one sentence saying what failed, naming the file, key or asset.
        found: what was there.
        expected: what should have been there.
        remedy: what the reader can do now.
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
        """One line: what failed, and what was found."""
        found = "" if self.found is None else str(self.found)
        return f"{self.what}: {found}" if found else self.what

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries; the default protocol would drop the keyword fields, and what
        # was found may be an exception that cannot be pickled.
        found, expected = (value if value is None else str(value) for value in (self.found, self.expected))
        return _rebuild, (type(self), self.what, found, expected, self.remedy)


def _rebuild(kind: type[PlinthError], what: str, found: object, expected: object, remedy: str | None) -> PlinthError:
    return kind(what, found=found, expected=expected, remedy=remedy)


class RecipeError(PlinthError):
    exit_code = 2


class BudgetError(RecipeError):
    """More would be spent than the file allows."""


class ExtensionError(RecipeError):
    pass


class RequestError(PlinthError):
    exit_code = 2


class MissingError(PlinthError):
    exit_code = 3


class SourceError(PlinthError):
    exit_code = 4


class StorageError(PlinthError):
    exit_code = 5


class IntegrityError(StorageError):
    pass


class SealError(IntegrityError):
    pass


class DiskFullError(StorageError):
    pass


class ConflictError(StorageError):
    pass


class WorkspaceError(StorageError):
    pass


class StageError(PlinthError):
    exit_code = 6


class RejectRateError(StageError):
    pass


class RemovalRateError(StageError):
    pass


class CheckFailedError(StageError):
    pass


class WorkerError(StageError):
    pass


class TrainingError(PlinthError):
    exit_code = 7


class CheckpointError(TrainingError):
    pass


class ResumeError(TrainingError):
    pass


class StoppedRunError(TrainingError):
    """A run was stopped or lost; the same command goes on with it."""


class LaunchError(TrainingError):
    pass


class TrustError(PlinthError):
    exit_code = 8


class SignatureError(TrustError):
    pass


class LineageError(TrustError):
    pass


class GateError(TrustError):
    pass


class RegistryError(PlinthError):
    exit_code = 9


#: Packages that the base installation lacks, and the extra of Plinth that brings them.
EXTRAS = {"torch": "train", "deepspeed": "train", "lm_eval": "tasks"}


def not_installed(package: str) -> MissingError:
    """The error about a package of `EXTRAS` that is needed here."""
    return MissingError(
        f"{package} is not installed",
        expected="it, where models are trained or evaluated",
        remedy=f"pip install 'plinth[{EXTRAS[package]}]', or let a launcher run this elsewhere (docs/launchers.md)",
    )
