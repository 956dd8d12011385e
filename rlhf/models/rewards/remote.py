"""A reward model behind an HTTP address."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch

from rlhf import distributed
from rlhf.errors import UserError, require
from rlhf.interfaces import Engine, RewardModel, Scorer
from rlhf.models.rewards.answers import finite_numbers
from rlhf.models.rewards.rules import column
from rlhf.types import Rollout, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RETRIED = frozenset({429, *range(500, 600)})
"""Answers that say "later": too many requests, and every fault of the server."""
LONGEST_WAIT = 60.0
"""Seconds at most between two tries."""


@dataclass(frozen=True, kw_only=True)
class RemoteReward(RewardModel):
    """Scores from a server, by HTTP POST of JSON; needs the extra ``rlhf[remote]``.

    Sent is ``{"prompts": [...], "responses": [...], "<column>": [...]}``, lists of one length; the answer must be
    ``{"scores": [...]}``, as many finite numbers in the same order, with status 200. A rollout is cut into requests of
    at most ``batch_size`` responses, several of them under way at once. No connection, no answer in time, 429 and 5xx
    are tried again, with waits of 0, 2, 4, 8 … times ``backoff`` (60 s at most) and up to ``backoff`` more by chance,
    or as the server's Retry-After says; any other answer is an error at once.

    Args:
        url: Where to post, http:// or https://.
        columns: Columns of the data to send along.
        batch_size: Most responses in a request.
        concurrency: Requests under way at once.
        timeout: Seconds to wait for a connection, and then for each part of the answer.
        retries: Further tries of a request that failed.
        backoff: Seconds that the waits between tries are multiples of.
        headers: Further headers. They stand in the saved config: a secret belongs in ``token_variable``.
        token_variable: Name of the environment variable whose value is sent as ``Authorization: Bearer …``; null for
            none.
    """

    url: str
    columns: list[str] = field(default_factory=list)
    batch_size: int = 64
    concurrency: int = 4
    timeout: float = 30.0
    retries: int = 5
    backoff: float = 0.5
    headers: dict[str, str] = field(default_factory=dict)
    token_variable: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"url: {self.url!r} is no address to post to; write http://host:port/path, or https://")
        require(at_least=1, batch_size=self.batch_size, concurrency=self.concurrency)
        require(at_least=0, retries=self.retries, backoff=self.backoff)
        require(above=0, timeout=self.timeout)
        if taken := sorted({"prompts", "responses"} & set(self.columns)):
            raise UserError(f"columns: {taken[0]} is sent anyway; rename the column")

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        for name in self.columns:
            if name not in (there := {name for names in columns.values() for name in names}):
                raise UserError(
                    f"columns: the data has no column {name}; there are {', '.join(sorted(there)) or 'none'}"
                )

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Makes the client; nothing is sent yet.

        Raises:
            UserError: urllib3 is not installed, or the environment has no such variable.
        """
        return RemoteScorer(self)

    def check_inputs(self) -> None:
        RemoteScorer(self)


class RemoteScorer(Scorer):
    """A pool of connections to the server."""

    def __init__(self, settings: RemoteReward) -> None:
        try:
            import urllib3
        except ImportError:
            raise UserError("RemoteReward: urllib3 is not installed; pip install 'rlhf[remote]'") from None
        self.settings = settings
        self.headers = dict(settings.headers)
        if settings.token_variable is not None:
            token = os.environ.get(settings.token_variable)
            if not token:
                raise UserError(
                    f"token_variable: the environment has no {settings.token_variable}; set it, or set this to null"
                )
            self.headers["Authorization"] = f"Bearer {token}"
        retries = urllib3.Retry(
            total=settings.retries,
            redirect=False,
            status_forcelist=RETRIED,
            allowed_methods=None,  # a score may be asked for twice: POST too
            backoff_factor=settings.backoff,
            backoff_jitter=settings.backoff,
            backoff_max=LONGEST_WAIT,
            raise_on_status=False,
        )
        timeout = urllib3.Timeout(connect=settings.timeout, read=settings.timeout)
        self.pool = urllib3.PoolManager(maxsize=settings.concurrency, block=True, retries=retries, timeout=timeout)

    def __call__(self, rollout: Rollout) -> Scores:
        prompts, size = rollout.prompts, self.settings.batch_size
        lists: dict[str, Sequence[Any]] = {"prompts": prompts.text, "responses": rollout.text}
        lists |= {name: column(prompts, name, "columns") for name in self.settings.columns}
        requests = [
            {name: list(values[start : start + size]) for name, values in lists.items()}
            for start in range(0, len(rollout), size)
        ]
        scores = distributed.once(lambda: self._ask(requests))
        return Scores(torch.tensor(scores, dtype=torch.float32, device=rollout.sequences.ids.device))

    def _ask(self, requests: Sequence[Mapping[str, list[Any]]]) -> list[float]:
        with ThreadPoolExecutor(self.settings.concurrency) as workers:
            return [score for part in workers.map(self._post, requests) for score in part]

    def _post(self, request: Mapping[str, list[Any]]) -> list[float]:
        import urllib3

        who = f"url: {self.settings.url}"
        try:
            body = json.dumps(request, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise UserError(f"columns: what is to be sent has no JSON ({error}); leave that column out") from None
        headers = {"Content-Type": "application/json", **self.headers}
        try:
            answer = self.pool.request("POST", self.settings.url, body=body, headers=headers, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"{who} gave no answer in {1 + self.settings.retries} tries ({reason}); start the server, correct the "
                "address, or raise timeout or retries"
            ) from None
        text = answer.data.decode(errors="replace")
        if answer.status != 200:
            moved = f" to {answer.headers['Location']}" if "Location" in answer.headers else ""
            raise UserError(
                f"{who} answered with status {answer.status}{moved}: {text[:200]!r}; it must be 200: look at the "
                "server's log, the address and the token"
            )
        try:
            scores = json.loads(text)["scores"]
        except (ValueError, KeyError, TypeError):
            raise UserError(f'{who} answered {text[:200]!r}; it must be JSON of the form {{"scores": [...]}}') from None
        return finite_numbers(scores, request["responses"], who)
