"""A named project's own code on a file of texts: run by `compare.py` under the project's Python, never by ours.

    PEER_PYTHON tests/agreement/peer.py PROFILE CHECKOUT < texts.jsonl > verdicts.jsonl

Every line in is a JSON string; every line out is `[reason, page]`: why the project drops the text, or "keep", and the
page it leaves (null where it goes, or where the project cuts nothing). Needs no package of ours. What a project imports
and these functions never call (readers, models, HTML) is replaced by empty modules.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

Verdict = tuple[str, str | None]

#: Packages that the projects import at the top and that no function below reaches.
UNUSED = frozenset(
    (
        "jsonlines", "boto3", "botocore", "transformers", "justext", "retrie", "langdetect", "kenlm", "ray", "fastwarc",
        "resiliparse", "w3lib", "tldextract", "pandas", "yaml", "zstandard", "s3fs", "gcld3", "pycld2",
        "huggingface_hub", "smart_open", "webdataset", "psutil", "bs4", "lxml", "torch", "absl", "tensorflow",
        "tensorflow_datasets", "sentencepiece", "cloudpathlib", "presidio_analyzer", "guesslang", "simdjson",
    )
)  # fmt: skip


class _Anything:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return _Anything()


class _Empty(types.ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in UNUSED else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def sentences(line: str, *args: Any, **kwargs: Any) -> list[str]:
    """Both sides split sentences by the rule of `plinth_text.rules.c4`; `--punkt` leaves the projects theirs."""
    pieces = re.split(r"[.!?]+[\"')]*(?=[ \t]|\Z)", line)
    full = [piece for piece in pieces if any(c > " " for c in re.sub(r"[.!?]+[\"')]*", "", piece))]
    return full or [line]


def sentences_of_page(page: str, *args: Any, **kwargs: Any) -> list[str]:
    return [one for line in page.split("\n") if line.strip() for one in sentences(line.strip())]


def gopher_dolma(checkout: str) -> Callable[[str], Verdict]:
    """The tagger, and the exclusions of configs/dolma-v1_6/mixing/cc-head.yaml as it states them."""
    from dolma.taggers.gopher import get_attributes

    def judge(text: str) -> Verdict:
        found = get_attributes(text)
        top = dict(found.fraction_of_characters_in_most_common_ngram)
        repeated = dict(found.fraction_of_characters_in_duplicate_ngrams)
        rules = [
            ("too_few_words", found.word_count < 50),
            ("too_many_words", found.word_count > 100000),
            ("word_length", found.median_word_length < 3 or found.median_word_length > 10),
            ("symbols", found.symbol_to_word_ratio > 0.1),
            ("few_letters", found.fraction_of_words_with_alpha_character < 0.8),
            ("few_stop_words", found.required_word_count < 2),
            ("bullets", found.fraction_of_lines_starting_with_bullet_point > 0.9),
            ("ellipsis_lines", found.fraction_of_lines_ending_with_ellipsis > 0.3),
            ("duplicate_lines", found.fraction_of_duplicate_lines > 0.3),
            ("duplicate_line_characters", found.fraction_of_characters_in_duplicate_lines > 0.3),
        ]
        rules += [(f"top_{n}_gram", top.get(n, 0) > most) for n, most in ((2, 0.2), (3, 0.18), (4, 0.16))]
        rules += [
            (f"duplicate_{n}_grams", repeated.get(n, 0) > most)
            for n, most in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
        ]
        return next((reason for reason, fires in rules if fires), "keep"), None

    return judge


def dolma_16(checkout: str) -> Callable[[str], Verdict]:
    """Gopher, and the tagger's search for periods over the tokens of `plinth_text.rules.gopher`."""
    import numpy as np
    from dolma.taggers.repetitions.utils import find_periodic_sequences

    gopher = gopher_dolma(checkout)

    def judge(text: str) -> Verdict:
        verdict = gopher(text)
        words = re.findall(r"\w+|[^\w\s]+", text)
        numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
        tokens = np.array([numbers[word] for word in words], dtype=np.int64)
        found = find_periodic_sequences(tokens, max_period=13, min_period=1) if len(tokens) else ()
        if verdict[0] == "keep" and max((one.times for one in found), default=0) >= 100:
            return "repeated_tokens", None
        return verdict

    return judge


def c4_dolma(checkout: str) -> Callable[[str], Verdict]:
    """The tagger c4_v2, and configs/c4-replication/mixer.yaml without the list of bad words."""
    from dolma.core.data_types import Document
    from dolma.taggers.c4 import FasterC4Tagger

    tagger = FasterC4Tagger()

    def judge(text: str) -> Verdict:
        spans = tagger.predict(Document(source="", id="0", text=text)).spans
        kinds = {span.type for span in spans}
        for reason, kind in (
            ("curly_bracket", "has_curly_brace"),
            ("lorem_ipsum", "has_lorem_ipsum"),
            ("javascript", "has_javascript"),
        ):
            if kind in kinds:
                return reason, None
        gone = {at for span in spans if span.type.startswith("lines_") for at in range(span.start, span.end)}
        return "keep", "".join(letter for at, letter in enumerate(text) if at not in gone)

    return judge


def gopher_redpajama(checkout: str) -> Callable[[str], Verdict]:
    """The signals of app/src, and the rules of the dataset's card with Gopher's other values."""
    sys.path.insert(0, f"{checkout}/app/src")
    from core.document import Document
    from core.quality_signals import lines, natural_language, repetitions

    def last(signal: Any, document: Any) -> float:
        return signal(document)[0][2] or 0.0

    word_count, mean = natural_language.RPS_Doc_Word_Count(), natural_language.RPS_Doc_Mean_Word_Length()
    symbols, letters = natural_language.RPS_Doc_Symbol_To_Word_Ratio(), natural_language.RPS_Doc_Frac_No_Alph_Words()
    ellipses = natural_language.RPS_Doc_Frac_Lines_End_With_Ellipsis()
    bullets = lines.RPS_Lines_Start_With_Bulletpoint()
    tops = [
        (n, getattr(repetitions, f"RPS_Doc_Frac_Chars_Top_{n}gram")(), most)
        for n, most in ((2, 0.2), (3, 0.18), (4, 0.16))
    ]
    repeated = [
        (n, getattr(repetitions, f"RPS_Doc_Frac_Chars_Dupe_{n}Grams")(), most)
        for n, most in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    ]

    def judge(text: str) -> Verdict:
        document = Document(text, domain=None)
        starts = [line[2] or 0.0 for line in bullets(document)]
        rules = [
            ("too_few_words", last(word_count, document) < 50),
            ("too_many_words", last(word_count, document) > 10000),
            ("word_length", last(mean, document) < 3 or last(mean, document) > 10),
            ("symbols", last(symbols, document) > 0.1),
            ("bullets", sum(starts) / max(len(starts), 1) > 0.9),
        ]
        rules += [(f"top_{n}_gram", last(signal, document) > most) for n, signal, most in tops]
        rules += [(f"duplicate_{n}_grams", last(signal, document) > most) for n, signal, most in repeated]
        rules += [("ellipsis_lines", last(ellipses, document) > 0.3), ("few_letters", last(letters, document) > 0.2)]
        return next((reason for reason, fires in rules if fires), "keep"), None

    return judge


def _dclm(checkout: str) -> tuple[Any, Any, Any]:
    sys.meta_path.insert(0, _Finder())
    sys.path[:0] = [checkout, f"{checkout}/baselines"]
    from baselines.mappers import modifiers
    from baselines.mappers.enrichers.enrichers import word_counter_enricher
    from baselines.mappers.filters import content_filters

    return modifiers, content_filters, word_counter_enricher


def _steps(steps: Sequence[tuple[str, Callable[[dict[str, Any]], Any]]]) -> Callable[[str], Verdict]:
    def judge(text: str) -> Verdict:
        page = {"text": text}
        for reason, step in steps:
            left = step(page)
            if not left:
                return reason, None
            page = left[0]
        return "keep", page["text"]

    return judge


def refinedweb_dclm(checkout: str) -> Callable[[str], Verdict]:
    """The last steps of dclm_baseline_refinedweb.yaml."""
    change, drop, count = _dclm(checkout)
    short = {"max_length": 10, "remove_substring_only": True}
    return _steps(
        [
            ("emptied", lambda page: count(page, key="previous")),
            ("emptied", lambda page: change.uppercase_ratio_line_modifier(page, 0.5)),
            ("emptied", lambda page: change.numeric_ratio_line_modifier(page, 0.999999)),
            ("emptied", change.counter_line_modifier()),
            ("emptied", lambda page: change.line_length_modifier(page, min_length=2)),
            ("emptied", change.substring_line_modifier("items in cart", **short)),
            ("emptied", change.substring_line_modifier("Read more...", location="suffix", **short)),
            ("emptied", change.substring_line_modifier("Sign-in", location="prefix", **short)),
            ("removed_words", lambda page: drop.word_removal_ratio_filter(page, "previous", max_removed_ratio=0.05)),
        ]
    )


def c4_dclm(checkout: str) -> Callable[[str], Verdict]:
    """The steps of c4.yaml up to the first count of sentences."""
    change, drop, _ = _dclm(checkout)
    policies = ["terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"]
    if "--punkt" not in sys.argv:
        drop.split_sentences = sentences_of_page
    return _steps(
        [
            ("too_long", lambda page: drop.page_length_filter(page, "char", max_length=190000)),
            ("too_few_sentences", lambda page: change.word_length_modifier(page, 1000, model="split")),
            ("too_few_sentences", change.citation_removal_modifier()),
            ("too_few_sentences", change.punctuation_line_modifier(remove_ellipses=True)),
            ("too_few_sentences", lambda page: change.line_length_modifier(page, min_length=5)),
            ("lorem_ipsum", drop.substring_filter(["lorem ipsum"])),
            ("too_few_sentences", change.substring_line_modifier(["javascript"])),
            ("curly_bracket", drop.substring_filter(["{"])),
            ("too_few_sentences", change.substring_line_modifier(policies)),
            ("too_few_sentences", lambda page: drop.page_length_filter(page, "sentence", min_length=3)),
        ]
    )


def code_redpajama(checkout: str) -> Callable[[str], Verdict]:
    """RedPajama v1's rules for source code, as DCLM rebuilds them with the same values."""
    _, drop, _ = _dclm(checkout)
    return _steps(
        [
            ("long_line", lambda page: drop.line_length_filter(page, "max", 1000)),
            ("long_lines", lambda page: drop.line_length_filter(page, "avg", 100)),
            ("few_alphanumerics", lambda page: drop.alphanumeric_char_ratio_filter(page, 0.25)),
        ]
    )


def c4_paper(checkout: str) -> Callable[[str], Verdict]:
    """TensorFlow Datasets' clean_page (the file c4_utils.py, or its folder) with the paper's first numbers."""
    sys.meta_path.insert(0, _Finder())
    path = checkout if checkout.endswith(".py") else f"{checkout}/tensorflow_datasets/text/c4_utils.py"
    spec = importlib.util.spec_from_file_location("c4_utils", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if "--punkt" not in sys.argv:
        module._get_sentences = sentences  # type: ignore[attr-defined]
    clean = module.get_clean_page_fn()

    def judge(text: str) -> Verdict:
        seen: list[str] = []
        made = list(clean(("", {"text": text}), counter_inc_fn=seen.append, min_words_per_line=3, min_num_sentences=5))
        if made:
            return "keep", made[0][1]["text"]
        reasons = {"loremipsum": "lorem_ipsum", "squigglybracket": "curly_bracket"}
        return reasons.get(seen[-1].rpartition("-")[2], "too_few_sentences"), None

    return judge


def _datatrove(*filters: tuple[str, str, dict[str, Any]]) -> Callable[[str], Verdict]:
    """Filters in a row. Words are what white space separates on both sides; `released.py` leaves datatrove its own."""
    from importlib import import_module

    from datatrove.data import Document

    made = []
    for module_name, class_name, options in filters:
        module = import_module(f"datatrove.pipeline.filters.{module_name}")
        if hasattr(module, "split_into_words"):
            module.split_into_words = lambda text, language: text.split()
        if hasattr(module, "split_into_sentences"):
            module.split_into_sentences = sentences
        made.append(getattr(module, class_name)(**options))
    names = DATATROVE_REASONS

    def judge(text: str) -> Verdict:
        for one in made:
            verdict = one.filter(Document(text=text, id="0"))
            if verdict is not True:
                return names.get(verdict[1], verdict[1]), None
        return "keep", None

    return judge


#: datatrove's names for the reasons of profiles.
DATATROVE_REASONS = {
    "dup_line_frac": "duplicate_lines", "dup_para_frac": "duplicate_paragraphs",
    "dup_line_char_frac": "duplicate_line_characters", "dup_para_char_frac": "duplicate_paragraph_characters",
    **{f"duplicated_{n}_n_grams": f"duplicate_{n}_grams" for n in range(5, 11)},
    "gopher_short_doc": "too_few_words", "gopher_long_doc": "too_many_words",
    "gopher_below_avg_threshold": "word_length", "gopher_above_avg_threshold": "word_length",
    "gopher_too_many_hashes": "symbols", "gopher_too_many_ellipsis": "symbols", "gopher_too_many_bullets": "bullets",
    "gopher_too_many_end_ellipsis": "ellipsis_lines", "gopher_below_alpha_threshold": "few_letters",
    "gopher_enough_stop_words": "few_stop_words", "line_punct_ratio": "unended_lines",
    "short_line_ratio": "short_lines", "char_dup_ratio": "duplicate_characters", "list_ratio": "list_like",
}  # fmt: skip


def gopher_white_space(checkout: str) -> Callable[[str], Verdict]:
    return _datatrove(
        ("gopher_repetition_filter", "GopherRepetitionFilter", {}), ("gopher_quality_filter", "GopherQualityFilter", {})
    )


def fineweb_white_space(checkout: str) -> Callable[[str], Verdict]:
    return _datatrove(("fineweb_quality_filter", "FineWebQualityFilter", {}))


def c4_white_space(checkout: str) -> Callable[[str], Verdict]:
    return _datatrove(("c4_filters", "C4QualityFilter", {}))


PEERS = {
    "gopher/white-space": gopher_white_space,
    "fineweb/white-space": fineweb_white_space,
    "c4/white-space": c4_white_space,
    "gopher/dolma": gopher_dolma,
    "dolma/1.6": dolma_16,
    "c4/dolma": c4_dolma,
    "gopher/redpajama": gopher_redpajama,
    "refinedweb/dclm": refinedweb_dclm,
    "c4/dclm": c4_dclm,
    "code/redpajama": code_redpajama,
    "c4/paper": c4_paper,
}


if __name__ == "__main__":
    judge_one = PEERS[sys.argv[1]](sys.argv[2])
    for given in sys.stdin:
        sys.stdout.write(json.dumps(judge_one(json.loads(given))) + "\n")
