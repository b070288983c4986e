"""Licenses that tests permit: `permitting("MIT")`."""

from plinth.corpus.annotate.licence import LicenceParams
from plinth.corpus.policy.compiled_policy import Rights


def permitting(*licences: str, **by_use: tuple[str, ...]) -> Rights:
    """Rights under these licenses; `uses`, `redistribute` and `commercial` as the annotator has them."""
    return Rights(licences=LicenceParams.model_validate({"permitted": licences, **by_use}))


MIT = permitting("MIT")
