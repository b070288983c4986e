"""Answers of a language model: faults of the endpoint, budgets, and what is asked again."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.compute.progress import SilentMeter
from plinth.corpus.llm import answers
from plinth.corpus.llm.client import Client, NoReply, Reply
from plinth.corpus.llm.parameters import Endpoint, Questions
from plinth.errors import BudgetError, EndpointError, MissingError, RejectRateError, RequestError, SourceError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from tests.llm_server import MODEL, Answer, Llm, llm_server
from tests.plinth.corpus.llm.prompts import prompt_list

TEXTS = [["one", "two", "three", "two"], [], ["four", "five"]]
ASKED = {"endpoint": "local", "model": MODEL, "prompt": "rate"}


def endpoint(llm: Llm, **given: Any) -> Endpoint:
    return Endpoint(**{"url": llm.url, "concurrency": 4, "backoff_s": 0.01, "attempts": 3, "timeout_s": 20.0} | given)


def ask(corpus: Any, llm: Llm, given: dict[str, Any] | None = None, **changes: Any) -> Manifest:
    ctx = Context(corpus.ctx.workspace)
    asked = Questions(**ASKED | changes)
    documents, prompt = corpus.documents["web"], prompt_list(ctx)
    return answers.run(ctx, "web/llm/answers", asked, endpoint(llm, **given or {}), documents, prompt)


def rows(corpus: Any, made: Manifest) -> list[tuple[str | None, str | None]]:
    found = [row for part in made.parts for row in read_table(corpus.ctx.store, part).to_pylist()]
    return [(row["answer"], row["reason"]) for row in found]


def corpus_of(tiny: Any, texts: list[list[str]] = TEXTS) -> Any:
    return tiny.corpus({"web": [[tiny.Doc(text, name=f"{i}/{n}") for n, text in enumerate(part)]
                                for i, part in enumerate(texts)]})  # fmt: skip


def test_each_text_is_asked_once_and_answers_are_aligned(tiny: Any) -> None:
    corpus = corpus_of(tiny)
    with llm_server(lambda prompt: prompt.upper()) as llm:
        made = ask(corpus, llm, {"concurrency": 1})
        again = ask(corpus, llm)
    assert made == again
    assert sorted(llm.prompts) == sorted(f"Rate {text}!" for text in ("one", "two", "three", "four", "five"))
    assert [part.rows for part in made.parts] == [4, 0, 2]
    assert rows(corpus, made) == [(f"RATE {text.upper()}!", None) for part in TEXTS for text in part]
    assert made.stats["questions"] == made.stats["answers"] == 6
    assert made.stats["rejects"] == {}
    assert (made.stats["input_tokens"], made.stats["output_tokens"]) == (42, 18)
    body = llm.bodies[-1]
    assert (body["model"], body["temperature"], body["seed"], body["max_tokens"]) == (MODEL, 0.0, 1, 256)


def test_a_new_part_costs_its_own_texts_and_a_new_prompt_costs_all(tiny: Any) -> None:
    corpus = corpus_of(tiny)
    with llm_server(str.upper) as llm:
        ask(corpus, llm)
        larger = corpus_of(tiny, [*TEXTS, ["five", "six"]])
        assert rows(larger, ask(larger, llm))[-1] == ("RATE SIX!", None)
        assert llm.prompts.count("Rate six!") == 1
        assert len(llm.prompts) == 6
        ask(corpus, llm, seed=2)
        assert len(llm.prompts) == 11


def test_the_sample_is_a_share_of_the_texts(tiny: Any) -> None:
    texts = [[f"text number {n}" for n in range(part, part + 200)] for part in (0, 150)]
    corpus = corpus_of(tiny, texts)
    with llm_server(str.upper) as llm:
        ctx = Context(corpus.ctx.workspace)
        made = answers.run(ctx, "web/llm/answers", Questions(**ASKED), endpoint(llm), corpus.documents["web"],
                           prompt_list(ctx), share=0.2)  # fmt: skip
    found = rows(corpus, made)
    chosen = {text for (_, reason), text in zip(found, chain(*texts), strict=True) if reason is None}
    assert {reason for _, reason in found} == {None, "not_sampled"}
    assert 40 < len(chosen) < 100
    assert made.stats["questions"] == sum(text in chosen for part in texts for text in part)  # copies are chosen alike
    assert set(llm.prompts) == {f"Rate {text}!" for text in chosen}


FAULTS: dict[str, tuple[Answer, str]] = {
    "cut": ({"content": "half a", "finish": "length"}, "truncated"),
    "filtered": ({"content": "x", "finish": "content_filter"}, "filtered"),
    "blank": ("  \n", "empty"),
    "bell": ("a\x07b", "control_characters"),
    "other": ({"content": "x", "model": "larger"}, "other_model"),
    "html": ({"raw": b"<html><body>502 Bad Gateway</body></html>"}, "malformed"),
    "list": ({"raw": b"[1, 2]"}, "malformed"),
    "deep": ({"raw": b"[" * 100_000}, "malformed"),
    "nested model": ({"raw": b'{"model": ' + b"[" * 900 + b"]" * 900 + b"}"}, "other_model"),
    "nothing": ({"raw": b""}, "malformed"),
    "no message": ({"choices": [{"index": 0, "message": None}]}, "malformed"),
    "no choice": ({"choices": []}, "malformed"),
    "tools": ({"content": None}, "malformed"),
    "huge": ({"raw": b"x" * 5_000_000}, "too_large"),
    "packed": ({"raw": gzip.compress(b"{}"), "headers": {"Content-Encoding": "gzip"}}, "malformed"),
    "long": ({"raw": b"context length", "status": 400}, "request_refused"),
    "busy": ({"raw": b"later", "status": 503}, "server_error"),
    "limited": ({"raw": b"slow down", "status": 429, "headers": {"Retry-After": "0"}}, "rate_limited"),
}


def test_each_fault_is_a_counted_reject_and_the_rest_is_answered(tiny: Any) -> None:
    corpus = corpus_of(tiny, [["good", *list(FAULTS)[:8]], [*list(FAULTS)[8:], "last"]])
    wanted = {f"Rate {name}!": answer for name, (answer, _) in FAULTS.items()}
    with llm_server(lambda prompt: wanted.get(prompt, "fine")) as llm:
        made = ask(corpus, llm, {"concurrency": 32})
        tries = Counter(llm.prompts)
    names = ["good", *FAULTS, "last"]
    reasons = {name: reason for name, (_, reason) in zip(names, rows(corpus, made), strict=True) if reason}
    assert reasons == {name: reason for name, (_, reason) in FAULTS.items()}
    assert made.stats["rejects"] == dict(sorted(Counter(reason for _, reason in FAULTS.values()).items()))
    assert [tries[f"Rate {name}!"] for name in ("html", "busy", "limited", "long", "cut", "huge")] == [3, 3, 3, 1, 1, 1]


def test_reported_and_impossible_tokens(tiny: Any) -> None:
    usages: list[Any] = [{"prompt_tokens": 5, "completion_tokens": 2}, {"prompt_tokens": -1, "completion_tokens": 300},
                         None, {"prompt_tokens": "7", "completion_tokens": True}]  # fmt: skip
    with llm_server(lambda prompt: {"content": "x", "usage": usages[int(prompt[0])]}) as llm:

        async def replies() -> list[Reply | NoReply]:
            async with Client(endpoint(llm), Questions(**ASKED), None) as client:
                return [await client.ask(f"{n}") for n in range(4)]

        found = asyncio.run(replies())
    assert [one[2:] for one in found if isinstance(one, Reply)] == [(5, 2), (257, 256), (257, 256), (257, 256)]


def test_choices_in_another_order_and_surrogates(tiny: Any) -> None:
    def choice(index: int, text: str) -> dict[str, Any]:
        return {"index": index, "message": {"content": text}, "finish_reason": "stop"}

    corpus = corpus_of(tiny, [["a"]])
    with llm_server(lambda prompt: {"choices": [choice(1, "second"), choice(0, "first \ud800")]}) as llm:
        assert rows(corpus, ask(corpus, llm)) == [("first ?", None)]
        assert rows(corpus, ask(corpus, llm)) == [("first ?", None)]


@pytest.mark.parametrize("fault", [{"hang_s": 30}, {"content": "slow", "drip_s": 0.2}])
def test_a_request_has_a_time_limit(tiny: Any, fault: dict[str, Any]) -> None:
    corpus = corpus_of(tiny, [["stuck", "fine"]])
    with llm_server(lambda prompt: fault if "stuck" in prompt else "x") as llm:
        made = ask(corpus, llm, {"timeout_s": 1.0, "attempts": 2})
    assert rows(corpus, made) == [(None, "timeout"), ("x", None)]
    assert llm.seen("Rate stuck!") == 2


def test_all_requests_wait_after_a_429(tiny: Any) -> None:
    times = list[float]()

    def answer(prompt: str) -> Answer:
        times.append(time.monotonic())
        return {"raw": b"", "status": 429, "headers": {"Retry-After": "1"}} if len(times) == 2 else "x"

    corpus = corpus_of(tiny, [["a", "b", "c"]])
    with llm_server(answer) as llm:
        made = ask(corpus, llm, {"concurrency": 1})
    assert made.stats["answers"] == 3
    assert len(times) == 5  # the probe, and one attempt more than questions
    assert times[2] - times[1] >= 1.0


UNUSABLE: dict[str, tuple[Answer, str]] = {
    "key": ({"raw": b"no", "status": 401}, "HTTP 401"),
    "address": ({"raw": b"no", "status": 404}, "HTTP 404"),
    "redirect": ({"raw": b"", "status": 307, "headers": {"Location": "https://elsewhere.example/v1"}}, "elsewhere"),
    "model": ({"content": "x", "model": "larger"}, "larger"),
    "pause": ({"raw": b"", "status": 429, "headers": {"Retry-After": "86400"}}, "86,400"),
    "down": ({"raw": b"", "status": 500}, "server_error"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_endpoint_that_cannot_answer_is_named(tiny: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    answer, found = UNUSABLE[name]
    monkeypatch.setenv("LLM_API_KEY", "sesame-43")
    corpus = corpus_of(tiny)
    with llm_server(lambda prompt: answer) as llm, pytest.raises(EndpointError) as error:
        ask(corpus, llm, {"key": "LLM_API_KEY"})
    assert found in str(error.value)
    assert llm.prompts == []
    assert {one["Authorization"] for one in llm.headers} == {"Bearer sesame-43"}
    with llm_server(str.upper) as llm:  # the same command goes on
        assert ask(corpus, llm, {"key": "LLM_API_KEY"}).stats["answers"] == 6


def test_an_endpoint_that_is_not_there(tiny: Any) -> None:
    corpus = corpus_of(tiny)
    with llm_server(str.upper) as llm:
        pass
    with pytest.raises(EndpointError, match="does not answer"):
        ask(corpus, llm)


def test_the_key_is_needed_hidden_and_never_sent_in_the_clear(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(tiny)
    with llm_server(lambda prompt: {"raw": b"bad key sesame-43", "status": 401}) as llm:
        with pytest.raises(MissingError, match="LLM_API_KEY"):
            ask(corpus, llm, {"key": "LLM_API_KEY"})
        monkeypatch.setenv("LLM_API_KEY", "sesame-43")
        with pytest.raises(EndpointError) as error:
            ask(corpus, llm, {"key": "LLM_API_KEY"})
    assert "sesame" not in str(error.value)
    for url in ("http://llm.example.org/v1", "ftp://llm.example.org", "https://me:pw@llm.example.org/v1", "llm"):
        with pytest.raises(ValueError, match=r"address|TLS"):
            Endpoint(url=url, key="LLM_API_KEY")


def test_an_outage_ends_the_stage_and_loses_no_answer(tiny: Any) -> None:
    """Questions that failed in the outage are asked again; none of them becomes a reject."""
    texts = [[f"{part}-{n}" for n in range(10)] for part in range(6)]
    corpus, down = corpus_of(tiny, texts), [False]

    def answer(prompt: str) -> Answer:
        down[0] = down[0] or "3-0" in prompt
        return {"raw": b"", "status": 502} if down[0] else "x"

    with llm_server(answer) as llm:
        with pytest.raises(EndpointError, match="in succession"):
            ask(corpus, llm, {"attempts": 1})
        before = {prompt for prompt in llm.prompts if int(prompt[5]) < 3}
        llm.answer = str.upper
        llm.bodies.clear()
        made = ask(corpus, llm, {"attempts": 1})
    assert made.stats["rejects"] == {}
    assert made.stats["answers"] == 60
    assert len(before & set(llm.prompts)) <= 4  # were in flight at the beginning of the outage


def test_faults_at_the_very_end_are_rejects_only_if_the_endpoint_is_up(tiny: Any) -> None:
    corpus, broken = corpus_of(tiny, [["a", "b"]]), [True]
    with llm_server(lambda prompt: {"raw": b"", "status": 500} if broken[0] and prompt != "Hello" else "x") as llm:
        assert ask(corpus, llm).stats["rejects"] == {"server_error": 2}
    corpus = corpus_of(tiny, [["c", "d"]])
    with llm_server(lambda prompt: {"raw": b"", "status": 500} if llm.prompts else "x") as llm:
        with pytest.raises(EndpointError):
            ask(corpus, llm)
        llm.answer = str.upper
        assert ask(corpus, llm).stats["answers"] == 2


@pytest.mark.parametrize(
    ("limit", "name"),
    [({"max_tokens": 800}, "max_tokens"), ({"max_money": 0.08, "input_price": 100, "output_price": 100}, "max_money")],
)
def test_a_budget_ends_the_stage_and_the_same_command_goes_on(tiny: Any, limit: dict[str, Any], name: str) -> None:
    corpus = corpus_of(tiny, [[f"text {n}" for n in range(60)]])
    with llm_server(str.upper) as llm:
        with pytest.raises(BudgetError) as error:
            ask(corpus, llm, limit)
        asked = len(llm.prompts)
        most = 512 + 13 + 1  # the longest answer to the longest prompt: template and prompt bytes, then 256 tokens
        assert (800 - most) // 10 <= asked <= 800 // 10
        assert name in str(error.value.found)
        assert f"{10 * asked:,} tokens used" in str(error.value.found)
        with pytest.raises(BudgetError):
            ask(corpus, llm, limit)
        assert len(llm.prompts) == asked
        made = ask(corpus, llm, {key: value if "price" in key else 10 * value for key, value in limit.items()})
    assert made.stats["answers"] == 60
    assert len(llm.prompts) == len(set(llm.prompts)) == 60


def test_attempts_that_may_be_billed_count_against_the_budget(tiny: Any) -> None:
    """The endpoint generates tokens for each of three attempts, but the budget has room for two."""
    corpus = corpus_of(tiny, [["one"]])
    with llm_server(lambda prompt: "x" if prompt == "Hello" else {"raw": b"<html>"}) as llm:
        with pytest.raises(BudgetError, match="could exceed its budget") as error:
            ask(corpus, llm, {"max_tokens": 1100})
        assert llm.seen("Rate one!") == 2
        assert "521 tokens used" in str(error.value.found)
        llm.answer = str.upper
        assert rows(corpus, ask(corpus, llm, {"max_tokens": 1100})) == [("RATE ONE!", None)]


def test_a_key_that_is_no_header_and_a_key_in_a_redirect_are_not_shown(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(tiny)
    moved: Answer = {"raw": b"", "status": 307, "headers": {"Location": "https://other.example/?key=sesame-43"}}
    with llm_server(lambda prompt: moved) as llm:
        for key in ("sesame-43\nX: y", "sesame-43\u00e9", "sesame\x7f43"):
            monkeypatch.setenv("LLM_API_KEY", key)
            with pytest.raises(RequestError, match="not an API key") as error:
                ask(corpus, llm, {"key": "LLM_API_KEY"})
            assert "sesame" not in str(error.value)
        assert llm.bodies == []
        monkeypatch.setenv("LLM_API_KEY", "sesame-43")
        with pytest.raises(EndpointError, match="redirects") as refused:
            ask(corpus, llm, {"key": "LLM_API_KEY"})
    assert "sesame" not in str(refused.value)


def test_costs_are_recorded_for_the_ledger(tiny: Any) -> None:
    corpus = corpus_of(tiny)
    ctx = Context(corpus.ctx.workspace)
    with llm_server(str.upper) as llm:
        answers.run(ctx, "web/llm/answers", Questions(**ASKED), endpoint(llm, input_price=2e6, output_price=1e6),
                    corpus.documents["web"], prompt_list(ctx))  # fmt: skip
    assert (ctx.costs["answers"].tokens, ctx.costs["answers"].endpoint_price) == (50, 5 * (14 + 3))


def test_too_many_rejects_fail_and_a_prompt_must_have_the_mark(tiny: Any) -> None:
    corpus = corpus_of(tiny, [["a", "bad", "c"]])
    with llm_server(lambda prompt: "" if "bad" in prompt else "x") as llm:
        ctx = Context(corpus.ctx.workspace)
        given = (ctx, "web/llm/answers", Questions(**ASKED), endpoint(llm), corpus.documents["web"])
        with pytest.raises(RejectRateError) as error:
            answers.run(*given, prompt_list(ctx), max_reject_rate=0.3)
        assert error.value.found == "empty 1"
        assert answers.run(*given, prompt_list(ctx), max_reject_rate=0.34).stats["answers"] == 2
        with pytest.raises(SourceError, match="not a prompt"):
            answers.run(*given, prompt_list(ctx, b"Rate it!"))
        with pytest.raises(SourceError, match="not a prompt"):
            answers.run(*given, prompt_list(ctx, b"\xff {text}"))


def test_a_bad_prompt_ends_before_it_has_spent_the_budget(tiny: Any) -> None:
    corpus = corpus_of(tiny, [[f"text {n}" for n in range(600)]])
    ctx = Context(corpus.ctx.workspace)
    with llm_server(lambda prompt: "") as llm:
        given = (ctx, "web/llm/answers", Questions(**ASKED), endpoint(llm), corpus.documents["web"], prompt_list(ctx))
        with pytest.raises(RejectRateError) as error:
            answers.run(*given, max_reject_rate=0.1)
    assert error.value.found == "the last: empty"
    assert 200 <= len(llm.prompts) <= 210


def test_progress_states_speed_and_time_left(tiny: Any) -> None:
    notes = list[str]()

    class Noted(SilentMeter):
        def advance(self, n: int = 1, note: str = "") -> None:
            notes.append(note)

    class Progress:
        @contextmanager
        def meter(self, label: str, total: int, unit: str = "") -> Iterator[Noted]:
            yield Noted()

    corpus = corpus_of(tiny, [["a", "b", "c"]])
    ctx = Context(corpus.ctx.workspace, progress=Progress())
    with llm_server(lambda prompt: "" if "b" in prompt else "x") as llm:
        answers.run(
            ctx, "web/llm/answers", Questions(**ASKED), endpoint(llm), corpus.documents["web"], prompt_list(ctx)
        )
    own = [note for note in notes if "tokens/s" in note]
    assert len(own) == 3
    assert re.fullmatch(r"[1-9][0-9,]* tokens/s, 0 s left, 1 rejected", own[-1])


CHILD = """
import sys, json
from pathlib import Path
from plinth.compute.context import Context
from plinth.corpus.llm import answers
from plinth.corpus.llm.parameters import Endpoint, Questions
from plinth.records import Manifest
from plinth.storage.workspace import Workspace

workspace, url, documents, prompt = sys.argv[1:]
ctx = Context(Workspace(workspace))
documents, prompt = (Manifest.model_validate_json(Path(one).read_text()) for one in (documents, prompt))
questions = Questions(endpoint="local", model="tiny", prompt="rate")
answers.run(ctx, "web/llm/answers", questions, Endpoint(url=url, concurrency=4), documents, prompt)
"""


def test_after_a_kill_nothing_that_was_answered_is_asked_again(tiny: Any, tmp_path: Any) -> None:
    texts = [[f"text {part} {n}" for n in range(40)] for part in range(3)]
    corpus = corpus_of(tiny, texts)
    documents, prompt = tmp_path / "documents.json", tmp_path / "prompt.json"
    documents.write_text(corpus.documents["web"].model_dump_json())
    prompt.write_text(prompt_list(corpus.ctx).model_dump_json())
    victim: list[subprocess.Popen[bytes]] = []

    def answer(asked: str) -> Answer:
        if victim and len(llm.prompts) == 70 and len(victim) == 1:
            os.kill(victim[0].pid, signal.SIGKILL)
            victim.append(victim[0])
        return asked.upper()

    command = [sys.executable, "-c", CHILD, str(corpus.ctx.workspace.root)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with llm_server(answer) as llm:
        child = subprocess.Popen([*command, llm.url, str(documents), str(prompt)], env=environment)
        victim.append(child)
        assert child.wait(60) == -signal.SIGKILL
        first = list(llm.prompts)
        made = ask(corpus, llm)
        counts = Counter(llm.prompts)
    assert len(first) >= 70
    assert made.stats["answers"] == 120
    repeated = [prompt for prompt, count in counts.items() if count > 1]
    assert len(repeated) <= 4  # at most the requests in flight
    assert set(repeated) <= set(first[-8:])
    assert len(counts) == 120
    assert rows(corpus, made) == [(f"RATE {text.upper()}!", None) for part in texts for text in part]
