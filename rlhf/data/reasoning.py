"""Questions of the package reasoning-gym as a data source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlhf.data.spool import spooled
from rlhf.errors import require
from rlhf.interfaces import Source
from rlhf.models.rewards.reasoning import evaluates_text, installed_version, make_task

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, kw_only=True)
class ReasoningGym(Source):
    """Questions of a task of the package reasoning-gym; needs the extra ``rlhf[reasoning-gym]``.

    A row has the question as ``prompt``, the task's own answer as ``response`` and ``answer``, and a column ``entry``
    for ``ReasoningGymReward``. Where many answers are right, only that reward knows.   Source: arXiv:2505.24760.

    Args:
        task: Its name, such as ``chain_sum``.
        size: How many questions.
        seed: Another seed, other questions.
        config: Settings of the task, such as ``{max_terms: 3}``.
    """

    task: str
    size: int = 1000
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(at_least=1, size=self.size)

    def check_inputs(self) -> None:
        self._made()

    def fingerprint(self) -> str:
        return f"{self!r} {installed_version()}"

    def remark(self) -> str:
        return "its judge evaluates responses as Python code" if evaluates_text(self._made()) else ""

    def load(self) -> datasets.Dataset:
        return spooled(self._rows(), f"ReasoningGym({self.task})")

    def _made(self) -> Any:
        return make_task(self.task, self.config, size=self.size, seed=self.seed)

    def _rows(self) -> Iterator[dict[str, Any]]:
        made = self._made()
        place = {"task": self.task, "config": self.config, "size": self.size, "seed": self.seed}
        for index in range(self.size):
            found = made[index]
            answer = str(found["answer"])
            entry = json.dumps({**place, "index": index})
            yield {"prompt": found["question"], "response": answer, "answer": answer, "entry": entry}
