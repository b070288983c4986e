"""A quantised or pruned form of a release: measured against it, stated by the evaluator, judged before it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from registry import attestations, measured, policy
from registry.exports.sealed import FormClaim
from registry.gates import Evidence, GatePolicy, failed, of_exports

#: Asset under which the comparison of a form with its release is stated about the checkpoint of the release.
FORMS: Final = "forms"


def judge(
    ctx: Context, recipe: Recipe, release: str, form: str, compared: Manifest, files: Mapping[str, str]
) -> FormClaim:
    """Sign what was measured of a form, and ask the gates of exports.

    Args:
        release: name of the release; its signed policy has the bounds.
        form: such as `gguf-q8_0`.
        compared: comparison of the form (a) with the checkpoint of the release (b).
        files: SHA-256 of the files of the form, by name.

    Raises:
        GateError: a gate holds the form back.
        SignatureError: no key of the evaluator, or no policy that holds.
    """
    facts = measured.comparison({"comparison": compared})
    if facts is None:
        raise LineageError(f"the comparison {compared.digest[:12]} cannot be read")
    asset = f"{FORMS}/{form}"
    attestations.attest(
        ctx,
        recipe,
        "measurement",
        asset,
        facts.champion,
        materials={asset: compared.digest, "weights": facts.candidate, **compared.inputs},
        facts={"form": form, "files": dict(files), "lines": [one.model_dump(mode="json") for one in facts.lines]},
    )
    results = of_exports(_policy(ctx, release), Evidence(comparison=facts))
    if closed := failed(results):
        raise GateError(
            f"{form} of {release} may not leave",
            found="; ".join(f"{one.name}: {one.said}" for one in closed),
            expected="every gate of exports passed",
            remedy="choose a form with more bits; or sign a policy with other bounds (`extensions: {compressed: …}`)",
        )
    return FormClaim(name=form, comparison=compared.digest, gates=results)


def _policy(ctx: Context, release: str) -> GatePolicy:
    return policy.current(ctx, release).policy
