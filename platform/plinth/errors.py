"""All exceptions that Plinth raises on purpose.

    PlinthError
    ├── RecipeError          2  the recipe is wrong: file, key, line
    │   └── ExtensionError      an installed package's annotator, reader, gate or launcher cannot be used
    ├── RequestError         2  an invalid request, or one that needs a confirmation
    ├── MissingError         3  a requested object does not exist (asset, run, document)
    ├── SourceError          4  a source cannot be read or lacks required terms
    ├── StorageError         5  stored bytes cannot be read or written
    │   ├── IntegrityError      digest, length or format differ from what was recorded
    │   ├── DiskFullError       no space left
    │   ├── ConflictError       another process wrote the same reference first
    │   └── WorkspaceError      the workspace cannot be used
    ├── StageError           6  a stage failed
    │   ├── RejectRateError     more rejects than the recipe allows
    │   ├── RemovalRateError    a learned rule removes too much trusted text
    │   ├── CheckFailedError    a blocking check failed before publication
    │   ├── EndpointError       a language model's endpoint is down, or cannot answer any question
    │   └── WorkerError         a worker died or raised
    ├── TrainingError        7  training, launching, checkpoints
    │   ├── CheckpointError     not committed, torn, or not matching its record
    │   ├── ResumeError         a checkpoint does not belong to this run
    │   ├── CorruptionError     a step was computed wrong on a faulty device
    │   └── LaunchError         a job could not be submitted or found
    ├── TrustError           8  signature, lineage, gates, approval
    │   ├── SignatureError
    │   ├── LineageError
    │   └── GateError
    └── RegistryError        9  the model registry's server cannot be started or reached

The number is the exit status of the command line for errors in that branch.
"""

from __future__ import annotations

from plinth_text.errors import ExplainedError

#: Fields of all errors: found, expected, remedy; errors of `plinth_text` have them too.
PlinthError = ExplainedError


class RecipeError(PlinthError):
    exit_code = 2


class BudgetError(RecipeError):
    """The work could cost more than a budget or a spending limit allows."""


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


class EndpointError(StageError):
    pass


class WorkerError(StageError):
    pass


class TrainingError(PlinthError):
    exit_code = 7


class CheckpointError(TrainingError):
    pass


class ResumeError(TrainingError):
    pass


class CorruptionError(TrainingError):
    pass


class StoppedRunError(TrainingError):
    """A run was stopped or lost; the same command resumes it."""


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


#: Packages that are not in the base installation, with the extra of Plinth that installs each.
EXTRAS = {"torch": "train", "deepspeed": "train", "lm_eval": "tasks"}


def not_installed(package: str) -> MissingError:
    """Return the error for a missing package of `EXTRAS`."""
    return MissingError(
        f"{package} is not installed",
        expected=f"{package} on machines that train or evaluate models",
        remedy=f"pip install 'plinth[{EXTRAS[package]}]', or use a launcher to run this work on other machines "
        "(docs/launchers.md)",
    )
