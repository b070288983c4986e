"""Parameters of endpoints (`corpus.endpoints`), and of the questions that stages ask them."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from plinth.errors import MissingError, RecipeError, RequestError
from plinth.records import Frozen, Name, internal


class Endpoint(Frozen):
    """Server with an OpenAI-compatible API. Nothing here affects an answer, so nothing here is part of an identity."""

    url: str = Field(description="Base URL of the API, such as `http://127.0.0.1:8000/v1`.")
    key: str = Field(
        "",
        pattern=r"^([A-Za-z0-9_]*_API_KEY)?$",  # no other secret of the operator's environment can be named
        description="Environment variable with the API key, whose name ends with `_API_KEY`; if empty, no key is sent.",
    )
    concurrency: int = Field(16, ge=1, le=1024, description="Maximum number of requests at the same time.")
    timeout_s: float = Field(120.0, gt=0, description="Time limit of a request, in seconds.")
    attempts: int = Field(6, ge=1, le=20, description="Maximum number of attempts for a request.")
    input_price: float = Field(0.0, ge=0, description="Price of a million prompt tokens.")
    output_price: float = Field(0.0, ge=0, description="Price of a million generated tokens.")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Budget of a stage: maximum number of prompt and generated tokens, over all its attempts.",
    )
    max_money: float | None = Field(
        None, ge=0, description="Budget of a stage over all its attempts: maximum price of its tokens."
    )
    backoff_s: float = internal(1.0, ge=0, description="Mean delay before the second attempt; it doubles each time.")
    max_answer_bytes: int = internal(2**20, ge=1024, description="Maximum size of a response.")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not an address such as `https://llm.example.org/v1`")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the address contains a user or password; name an environment variable in `key`")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _protects_the_key(self) -> Endpoint:
        if self.key and self.url.startswith("http://") and not self.is_loopback:
            raise ValueError("a key must not be sent without TLS; use an `https://` address")
        if self.max_money is not None and not (self.input_price or self.output_price):
            raise ValueError("`max_money` needs `input_price` or `output_price`")
        return self

    @property
    def is_loopback(self) -> bool:
        """True if the server is on this machine."""
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def secret(self) -> str:
        """Return the API key, or an empty text if the endpoint needs none.

        Raises:
            MissingError: the environment variable is not set.
            RequestError: its value cannot be sent in a header; the error does not show it.
        """
        if not self.key:
            return ""
        if not (found := os.environ.get(self.key, "").strip()):
            raise MissingError(
                f"the environment variable {self.key} with the API key of {self.url} is not set",
                remedy=f"export {self.key}=… on the machine that runs the stage",
            )
        if not (found.isascii() and found.isprintable()):
            raise RequestError(
                f"the environment variable {self.key} is not an API key",
                found="a line break, a control character or a character that is not ASCII",
                expected="one line of printable ASCII characters",
                remedy=f"export {self.key}=… with the key alone",
            )
        return found

    def price(self, input_tokens: int, output_tokens: int) -> float:
        """Return the price of tokens."""
        return (input_tokens * self.input_price + output_tokens * self.output_price) / 1e6


class Questions(Frozen):
    """Parameters of the questions of a stage. All of them are part of an answer's identity, except the endpoint."""

    endpoint: Name = Field(description="Name of the endpoint in `corpus.endpoints`.")
    model: str = Field(min_length=1, description="Model to ask, as the endpoint names it.")
    reports: str = Field(
        "",
        description="Name that the endpoint's responses report, if it is not `model`, such as a dated version. Other "
        "names stop the stage.",
    )
    prompt: Name = Field(
        description="List in `corpus.lists` with the prompt: one text file, in which `{text}` marks the document."
    )
    max_characters: int = Field(
        20_000, ge=1, description="Number of characters of a document that the model reads, from its beginning."
    )
    max_tokens: int = Field(256, ge=1, description="Maximum number of generated tokens per answer.")
    temperature: float = Field(0.0, ge=0, le=2, description="Sampling temperature.")
    seed: int = Field(1, ge=0, description="Seed of the sampling, and of the sample of documents.")
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema",
        description="`response_format` of a request, by which the endpoint produces valid JSON; `none` to send none.",
    )

    @property
    def reported(self) -> str:
        """Name that responses must report."""
        return self.reports or self.model

    def identity(self, prompt: str, schema: dict[str, Any] | None) -> dict[str, Any]:
        """Return everything that determines an answer, except the document.

        Args:
            prompt: digest of the prompt.
            schema: JSON schema of the answer; None for free text.
        """
        names = {"model", "max_characters", "max_tokens", "temperature", "seed"}
        facts = self.model_dump(mode="json", include=names) | {"reports": self.reported, "prompt": prompt}
        return facts | ({"schema": schema, "structured": self.structured} if schema is not None else {})


class RewriteParams(Questions):
    """Parameters of rewritten documents (`kind: rewrite`, `options`)."""

    max_tokens: int = Field(1024, ge=1, description="Maximum number of generated tokens per document.")
    sample: float = Field(1.0, gt=0, le=1, description="Share of the documents to rewrite, by a hash of their text.")
    max_reject_rate: float = Field(
        0.1, ge=0, le=1, description="Maximum share of questions without a usable answer; above it, the stage fails."
    )
    max_overlap: float = Field(
        0.6,
        ge=0,
        lt=1,
        description="Maximum share of 5-word shingles that a text and its source may have in common; a text with more "
        "is rejected as a near copy.",
    )


def endpoint_of(endpoints: Mapping[str, Endpoint], name: str) -> Endpoint:
    """Return an endpoint of the recipe by name.

    Raises:
        RecipeError: there is no endpoint with this name.
    """
    if name not in endpoints:
        have = ", ".join(endpoints) or "none"
        raise RecipeError(
            f"there is no endpoint {name!r}", found=have, remedy="add it to `corpus.endpoints`, with its `url`"
        )
    return endpoints[name]
