"""Whether a recipe can go on from given weights: every difference is named at once.

Free to differ are positions (`rope_theta`, `rope_scaling`: a run on longer contexts changes them), what only training
uses (`document_mask`, `z_loss`) and what made the parent's own first weights (`init`, `init_std`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.errors import RecipeError
from plinth.model.hugging_face import TOKENIZER
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.tokens.tokenizer.vocabulary import same_tokenizer
from plinth.training.parameters.initial import InitialWeights

#: Fields of `Model` that shape parameters, or decide what is computed with them.
SHAPE = (
    *("architecture", "layers", "dim", "heads", "kv_heads", "ffn_dim", "norm_eps", "qk_norm", "qkv_bias"),
    *("tied_embeddings", "mup"),
)


def require_agreement(
    store: Store, params: InitialWeights, model: Model, initial: Manifest, tokenizer: Manifest
) -> None:
    """Refuse a model or a vocabulary that is not that of the weights.

    Raises:
        RecipeError: with every difference, and what would agree.
    """
    own, theirs = _shape(model), _shape(Model.model_validate(initial.stats["model"]))
    differing = [name for name in own if own[name] != theirs[name]]
    if differing:
        raise RecipeError(
            "training.model is not the model of training.initial",
            found=_listed(own, differing),
            expected=_listed(theirs, differing),
            remedy="write the expected values into training.model",
        )
    if params.vocabulary == "same":
        require_same_vocabulary(
            store,
            initial,
            tokenizer,
            "training.initial",
            "set tokenizer.kind: initial to go on with the parent's, or training.initial.vocabulary: mean",
        )


def require_same_vocabulary(store: Store, initial: Manifest, tokenizer: Manifest, key: str, remedy: str) -> None:
    """Refuse weights whose rows of embeddings are not the tokens of the run.

    Raises:
        RecipeError: names the recipe's `key`.
    """
    (ours,), (theirs,) = (one.named(TOKENIZER) for one in (tokenizer, initial))
    rows = tokenizer.stats["vocab_size"], initial.stats["vocab_size"]
    if rows[0] != rows[1] or not same_tokenizer(store, ours.blob, theirs.blob):
        raise RecipeError(
            f"the run's tokenizer is not that of {key}",
            found=f"{TOKENIZER} {ours.blob.sha256[:12]}, {rows[0]} tokens",
            expected=f"{TOKENIZER} {theirs.blob.sha256[:12]}, {rows[1]} rows of embeddings",
            remedy=remedy,
        )


def _shape(model: Model) -> dict[str, Any]:
    return {name: getattr(model, name) for name in SHAPE} | {"head_dim": model.head_width}


def _listed(values: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {values[name]}" for name in names)
