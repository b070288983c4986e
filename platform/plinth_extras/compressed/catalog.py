"""The forms as members of `plinth.model_forms`; imports no torch."""

from __future__ import annotations

from plinth.extensions import late
from plinth.model.hugging_face import ModelForm


def _form(name: str) -> ModelForm:
    return ModelForm(name=name, export=late("plinth_extras.compressed.export:form_export"))


GGUF_Q8_0, GGUF_Q4_0 = _form("gguf-q8_0"), _form("gguf-q4_0")
INT8, INT4 = _form("int8"), _form("int4")
PRUNED_50, PRUNED_2_4 = _form("pruned-50"), _form("pruned-2:4")
