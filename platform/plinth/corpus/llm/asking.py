"""Questions in flight: records of answers, the budget, and the end of an attempt.

An answer is recorded when it arrives, under the digests of everything that determines it. Faults of the endpoint are
not recorded one by one: they are written with their part, after the answer to a later request shows that the endpoint
works.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from typing import Any

import pyarrow as pa

from plinth.compute.context import Context, StepCost
from plinth.compute.progress import Meter
from plinth.corpus.llm.client import Client, NoReply, Reply, bound
from plinth.corpus.llm.parameters import Endpoint, Questions
from plinth.errors import BudgetError, EndpointError, PlinthError, RejectRateError
from plinth.fingerprint import canonical
from plinth.records import Part, Step
from plinth.storage.parts import iter_batches, write_table
from plinth.storage.store import Store

#: Name of the step in the costs of the asset.
STEP = "answers"
#: Text in a prompt that the document replaces.
MARK = "{text}"
#: Reason of rows without a question.
NOT_SAMPLED = "not_sampled"
#: Columns of the answers, aligned with the documents.
SCHEMA = pa.schema([pa.field("answer", pa.large_string()), pa.field("reason", pa.string())])
#: Questions whose records are looked up together.
LOOK_UP = 256
#: Consecutive faults after which an attempt ends; at least the number of questions in flight.
BREAK = 8
#: Questions after which twice the permitted share of rejects ends an attempt, before it spends its whole budget.
EARLY = 200
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@dataclass(eq=False)
class Rows:
    """Part of the result whose answers arrive."""

    key: str
    rows: int
    asked: int
    answers: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    input_tokens: int = 0
    output_tokens: int = 0
    mark: int = 0  # requests that had been sent when its last fault arrived

    @property
    def complete(self) -> bool:
        return len(self.answers) + len(self.reasons) == self.asked

    def add(self, row: int, found: Reply | NoReply, reason: str) -> None:
        """Add the result of one question, with the reason if it is not an answer."""
        if isinstance(found, Reply):
            self.input_tokens += found.input_tokens
            self.output_tokens += found.output_tokens
        if isinstance(found, Reply) and not reason:
            self.answers[row] = found.text
        else:
            self.reasons[row] = reason

    def written(self, store: Store) -> Part:
        """Write the answers and reasons of all rows."""
        everything = range(self.rows)
        answers = pa.array([self.answers.get(row) for row in everything], pa.large_string())
        reasons = [self.reasons.get(row, None if row in self.answers else NOT_SAMPLED) for row in everything]
        rejects = dict(sorted(Counter(self.reasons.values()).items()))
        stats = {"documents": self.rows, "questions": self.asked, "answers": len(self.answers), "rejects": rejects}
        stats |= {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        table = pa.table([answers, pa.array(reasons, pa.string())], schema=SCHEMA)
        return write_table(store, "part.parquet", table, stats=stats)


def judged(reply: Reply) -> str:
    """Return the reason why a reply is not an answer, or an empty text."""
    if reply.finish == "length":
        return "truncated"
    if reply.finish == "content_filter":
        return "filtered"
    if not reply.text.strip():
        return "empty"
    return "control_characters" if _CONTROL.search(reply.text) else ""


def too_many(asset: str, rejects: int, questions: int, limit: float, found: str) -> RejectRateError:
    """Return the error for too many questions without a usable answer."""
    return RejectRateError(
        f"{asset}: {rejects / questions:.1%} of {questions:,} questions have no usable answer",
        found=found,
        expected=f"at most {limit:.1%} (max_reject_rate)",
        remedy="correct the prompt or the model's parameters, or raise the limit",
    )


class Asking:
    """Questions in flight, the budget, and the progress of one attempt of a stage."""

    def __init__(
        self,
        ctx: Context,
        asset: str,
        questions: Questions,
        endpoint: Endpoint,
        prompt: str,
        step: Step,
        schema: Mapping[str, Any] | None,
        check: Callable[[str], str],
        max_reject_rate: float,
    ) -> None:
        self._ctx, self._asset, self._questions, self._endpoint = ctx, asset, questions, endpoint
        self._prompt, self._step, self._check, self._limit = prompt.split(MARK), step, check, max_reject_rate
        self._client = Client(endpoint, questions, _response_format(questions, schema))
        self._spent, self._held = [0, 0], [0, 0]  # prompt and generated tokens: of answers, and of questions in flight
        self._stop: PlinthError | None = None
        self._same: dict[str, asyncio.Future[Reply | NoReply]] = {}
        self._recent: dict[str, Reply] = {}  # answered after the records of their copies were looked up
        self._sent, self._proved = 0, 0  # requests sent, and number of the last of them that was answered
        self._faults, self._rejects, self._new, self._began = 0, 0, [0, 0], time.monotonic()
        self._settled = asyncio.Event()

    def spend(self, input_tokens: int, output_tokens: int) -> None:
        """Count tokens of answers against the budget."""
        self._spent = [self._spent[0] + input_tokens, self._spent[1] + output_tokens]

    def run(self, work: Sequence[tuple[str, int, Part]]) -> list[tuple[Part, ...]]:
        """Ask the questions of parts (key, rows, questions), and return the parts of answers.

        Raises:
            BudgetError, EndpointError, RejectRateError: the attempt ended before the last question; answers that
                arrived are recorded.
        """
        total = sum(part.rows for _, _, part in work)
        try:
            with self._ctx.progress.meter(self._asset, total, "questions") as meter:
                return asyncio.run(self._all(work, meter, total))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            price = self._endpoint.price(*self._new)
            self._ctx.costs[STEP] += StepCost(tasks=len(work), tokens=sum(self._new), endpoint_price=price)

    async def _all(self, work: Sequence[tuple[str, int, Part]], meter: Meter, total: int) -> list[tuple[Part, ...]]:
        slots, done, probed = asyncio.Semaphore(self._endpoint.concurrency), dict[str, tuple[Part, ...]](), False
        counter, complete = numbers(1), list[Rows]()

        async def finish(rows: Rows, row: int, found: Reply | NoReply) -> None:
            reason = found.reason if isinstance(found, NoReply) else judged(found) or self._check(found.text)
            rows.add(row, found, reason)
            if isinstance(found, NoReply):
                rows.mark = self._sent
            self._rejects += bool(reason)
            count = next(counter)
            meter.advance(1, self._progress(count, total))
            if count >= EARLY and self._rejects > 2 * self._limit * count and not self._stop:
                self._stop = too_many(self._asset, self._rejects, count, self._limit, f"the last: {reason}")
            if rows.complete:
                complete.append(rows)
            await write()

        async def write(every: bool = False) -> None:
            ready = [rows for rows in complete if every or not rows.mark or rows.mark < self._proved]
            for rows in ready:
                complete.remove(rows)
            for rows in ready:
                done[rows.key] = await asyncio.to_thread(self._write, rows)

        async def ask(rows: Rows, row: int, key: str, prompt: str) -> None:
            try:
                found = await self._once(key, prompt)
            finally:
                slots.release()
            if found is not None:
                await finish(rows, row, found)

        async with self._client:
            async with asyncio.TaskGroup() as group:
                for key, size, part in work:
                    rows = Rows(key, size, part.rows)
                    if not part.rows:
                        complete.append(rows)
                    async for row, own, prompt, known in self._looked_up(part):
                        if known is not None:
                            await finish(rows, row, known)
                            continue
                        if not probed:
                            await self._probe()
                            probed = True
                        await slots.acquire()
                        await self._admit(prompt)
                        if self._stop:
                            slots.release()
                            break
                        group.create_task(ask(rows, row, own, prompt))
                    if self._stop:
                        break
            await write()
            if complete and not self._stop:
                await self._probe()
            if not self._stop:
                await write(every=True)
        if self._stop:
            raise self._stop
        return [done[key] for key, _, _ in work]

    async def _looked_up(self, part: Part) -> AsyncIterator[tuple[int, str, str, Reply | None]]:
        """Yield row, key and prompt of each question, with its reply if there is a record of it."""
        for batch in iter_batches(self._ctx.store, part, rows=LOOK_UP):
            texts = batch.column("text").to_pylist()
            keys = [self._step.key((hashlib.sha256(text.encode()).hexdigest(),)) for text in texts]
            known = await asyncio.to_thread(self._known, keys)
            for row, key, text in zip(batch.column("row").to_pylist(), keys, texts, strict=True):
                reply = known.get(key)
                if reply is not None:
                    self.spend(reply.input_tokens, reply.output_tokens)
                yield row, key, text.join(self._prompt), reply

    async def _probe(self) -> None:
        try:
            await self._client.probe()
        except PlinthError as error:
            self._stop = error

    async def _admit(self, prompt: str) -> None:
        """Wait until the budget has room for a question, and reserve its maximum; set `_stop` if there is none."""
        most = bound(prompt, self._questions.max_tokens)
        while not self._stop:
            self._settled.clear()
            over = self._over(most)
            if not over:
                self._held = [held + own for held, own in zip(self._held, most, strict=True)]
                return
            if not any(self._held):
                self._stop = self._exhausted(over)
                return
            await self._settled.wait()

    def _over(self, most: tuple[int, int]) -> str:
        """Return the limit that a question could exceed, or an empty text."""
        tokens = [sum(one) for one in zip(self._spent, self._held, most, strict=True)]
        limit, money = self._endpoint.max_tokens, self._endpoint.max_money
        if limit is not None and sum(tokens) > limit:
            return f"max_tokens: {limit:,}"
        return f"max_money: {money:,.2f}" if money is not None and self._endpoint.price(*tokens) > money else ""

    def _exhausted(self, over: str) -> BudgetError:
        spent = f"{sum(self._spent):,} tokens used"
        price = self._endpoint.price(*self._spent)
        return BudgetError(
            f"{self._asset} stopped: the next question could exceed its budget",
            found=f"{spent}, {price:,.2f} spent; corpus.endpoints.{self._questions.endpoint}.{over}",
            expected="room for the longest answer to the next question",
            remedy="raise the limit and run the same command again; all answers are kept and cost nothing again",
        )

    async def _once(self, key: str, prompt: str) -> Reply | NoReply | None:
        """Ask a question whose budget is reserved, once for all documents with the same text; None if it was not
        answered because the stage ends."""
        most = bound(prompt, self._questions.max_tokens)
        used = (0, 0)
        found: Reply | NoReply

        def may_repeat() -> bool:
            """Count an attempt that may have been billed; its reservation is for the next attempt."""
            if over := self._over(most):
                self._stop = self._stop or self._exhausted(over)
            else:
                self._use(most)
            return not over

        try:
            if key in self._recent:
                return self._recent[key]
            if key in self._same:
                found = await self._same[key]
                return None if self._stop and isinstance(found, NoReply) else found
            mine = self._same[key] = asyncio.get_running_loop().create_future()
            found = NoReply("unreachable", "")
            self._sent += 1
            number = self._sent
            try:
                found = await self._client.ask(prompt, may_repeat=may_repeat)
                if isinstance(found, Reply):
                    used = found.input_tokens, found.output_tokens
                    await asyncio.to_thread(self._record, key, found)
                    self._proved = max(self._proved, number)
                    self._recent[key] = found
                    if len(self._recent) > 2 * LOOK_UP + self._endpoint.concurrency:
                        del self._recent[next(iter(self._recent))]
                elif found.billed:
                    used = most
            except PlinthError as error:
                self._stop = self._stop or error
                return None
            finally:
                mine.set_result(found)
                del self._same[key]
            self._watch(found)
            return None if isinstance(found, NoReply) and isinstance(self._stop, BudgetError) else found
        finally:
            self._use(used)
            self._held = [held - own for held, own in zip(self._held, most, strict=True)]
            self._settled.set()

    def _use(self, tokens: tuple[int, int]) -> None:
        """Count tokens that this attempt of the stage used."""
        self.spend(*tokens)
        self._new = [new + own for new, own in zip(self._new, tokens, strict=True)]

    def _watch(self, found: Reply | NoReply) -> None:
        """End the stage if the endpoint fails one question after the other."""
        self._faults = self._faults + 1 if isinstance(found, NoReply) else 0
        if isinstance(found, NoReply) and self._faults >= max(BREAK, self._endpoint.concurrency) and not self._stop:
            self._stop = EndpointError(
                f"the endpoint {self._endpoint.url} failed {self._faults} questions in succession",
                found=f"{found.reason}: {found.detail}",
                expected=f"answers of {self._questions.model}",
                remedy="run the same command again when it is up; answers that arrived are kept",
            )

    def _known(self, keys: Sequence[str]) -> dict[str, Reply]:
        found = self._ctx.cache.get_many(list(dict.fromkeys(keys)))
        return {key: self._read(parts[0]) for key, parts in zip(dict.fromkeys(keys), found, strict=True) if parts}

    def _read(self, part: Part) -> Reply:
        kept = json.loads(self._ctx.store.read_bytes(part.blob))
        return Reply(kept["text"], kept["finish"], part.stats["input_tokens"], part.stats["output_tokens"])

    def _record(self, key: str, reply: Reply) -> None:
        data = canonical({"text": reply.text, "finish": reply.finish})
        stats = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
        self._ctx.cache.put(key, (Part(name="answer.json", blob=self._ctx.store.put_bytes(data), rows=1, stats=stats),))

    def _write(self, rows: Rows) -> tuple[Part, ...]:
        return self._ctx.cache.put(rows.key, (rows.written(self._ctx.store),))

    def _progress(self, done: int, total: int) -> str:
        elapsed_s = max(time.monotonic() - self._began, 1e-3)
        left_s = elapsed_s / done * (total - done)
        left = f"{left_s / 60:,.0f} min" if left_s > 90 else f"{left_s:.0f} s"
        rejects = f", {self._rejects:,} rejected" if self._rejects else ""
        return f"{sum(self._new) / elapsed_s:,.0f} tokens/s, {left} left{rejects}"


def _response_format(questions: Questions, schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if schema is None or questions.structured == "none":
        return None
    if questions.structured == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)}}
