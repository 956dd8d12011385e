"""Benchmarks of lm-evaluation-harness, run on the policy as it is in memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from rlhf import distributed
from rlhf.data import fingerprint
from rlhf.errors import UserError, require
from rlhf.interfaces import Evaluated, EvaluationMetric, LiveEngine, LiveMetric, MetricSetup, NeedsInputs
from rlhf.models.tokenizer import pad_id
from rlhf.types import Selectable, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PACKAGE = "lm_eval"
SCORED = ("loglikelihood", "loglikelihood_rolling", "multiple_choice")
"""Kinds of tasks that ask how likely a text is; others have the model write one."""
MOST_LOGITS = 1 << 26
"""Log-probabilities of whole vocabularies held at once: 256 MB."""


@dataclass(frozen=True, kw_only=True)
class LMEval(EvaluationMetric, NeedsInputs):
    """Tasks of EleutherAI's lm-evaluation-harness that ask for likelihoods; needs the extra ``rlhf[lm-eval]``.

    Figures are ``<task>/<metric>``, such as ``arc_easy/acc``, as the harness works them out, without its standard
    errors. A text is read as in the harness, bare, without a template. Tasks that have the model write an answer are
    refused.   Source: doi:10.5281/zenodo.12608602.

    Args:
        tasks: Names of tasks or of groups of them. Their data come from where the harness has them, for most tasks the
            hub.
        include_path: Folder with tasks of your own, one YAML file each as the harness wants it; null for none.
        limit: Documents of each task at most; null is all of them.
        shots: Solved examples before each question; null as the task has it.
    """

    tasks: list[str]
    include_path: str | None = None
    limit: int | None = 200
    shots: int | None = None

    def __post_init__(self) -> None:
        if not self.tasks:
            raise UserError("tasks is []; name at least one, such as [arc_easy]")
        require(at_least=1, limit=self.limit)
        require(at_least=0, shots=self.shots)
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:  # without an origin it is but a folder of that name
            raise UserError(f"LMEval: the package {PACKAGE} is missing; pip install 'rlhf[lm-eval]'")

    @property
    def figures(self) -> None:
        return None

    @property
    def _folder(self) -> Path | None:
        return None if self.include_path is None else Path(self.include_path).expanduser()

    def check_inputs(self) -> None:
        if self._folder is not None and not self._folder.is_dir():
            raise UserError(f"include_path: {self._folder} is no folder; give one with tasks' YAML files")

    def fingerprint(self) -> str | None:
        return None if self._folder is None else fingerprint.of_files(sorted(self._folder.rglob("*.y*ml")))

    def build(self, setup: MetricSetup) -> LiveMetric:
        self.check_inputs()
        likelihoods = Likelihoods(setup.tokenizer, setup.positions, setup.engine.rows_at_once)
        return _LiveLMEval(self, self._loaded(), likelihoods)

    def _loaded(self) -> Any:
        """The tasks, as the harness holds them."""
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

        try:
            loaded = TaskManager(include_path=None if self._folder is None else str(self._folder)).load(self.tasks)
        except Exception as error:  # networks, files and code of tasks fail in any way
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise UserError(
                f"tasks: {', '.join(self.tasks)} cannot be loaded ({reason}); lm-eval ls tasks lists the names, and "
                "their data must be at hand"
            ) from error
        for name, task in loaded["tasks"].items():
            if (kind := task.get_config("output_type")) not in SCORED:
                raise UserError(f"tasks: {name} is of the kind {kind}; only {', '.join(SCORED)} can be asked for")
            own = task.get_config("num_fewshot")
            task.set_config(key="num_fewshot", value=(own or 0) if self.shots is None else self.shots)
            task.set_fewshot_seed(seed=1234)  # the harness's own
        return loaded


class _LiveLMEval(LiveMetric):
    def __init__(self, settings: LMEval, tasks: Any, likelihoods: Likelihoods) -> None:
        self.settings, self.tasks, self.likelihoods = settings, tasks, likelihoods

    def __call__(self, evaluated: Evaluated) -> dict[str, float]:
        from lm_eval.evaluator import evaluate  # pyright: ignore[reportMissingImports]

        # Each process asks for all, and the engine divides the rows: to the harness there is but one process.
        model = _model(self.likelihoods, evaluated.policy)
        found = evaluate(model, self.tasks, limit=self.settings.limit, bootstrap_iters=0, log_samples=False)
        return distributed.broadcast(figures_of(found["results"]))


def figures_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The harness's results by name: ``acc,none`` of a task is ``task/acc``, ``acc,filter`` is ``task/acc_filter``.

    Args:
        results: By task, values by metric and filter, among other entries.
    """
    found = {}
    for task, values in results.items():
        for key, value in values.items():
            metric, comma, chosen = key.partition(",")
            if comma and isinstance(value, int | float) and not metric.endswith("_stderr"):
                found[f"{task}/{metric}" + ("" if chosen == "none" else f"_{chosen}")] = float(value)
    return found


# --------------------------------------------------------------------------------------------------------- likelihoods


class Text(NamedTuple):
    """A text whose likelihood is asked for.

    Attributes:
        context: Ids that it follows, at least one.
        ids: Its own.
    """

    context: list[int]
    ids: list[int]


class Likelihoods:
    """Log-likelihoods of texts under a policy, at temperature 1, some rows at a time.

    Args:
        tokenizer: The policy's.
        positions: The most tokens that it reads; None where it has no limit.
        rows_at_once: Rows of a forward pass.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, positions: int | None, rows_at_once: int) -> None:
        self.tokenizer, self.positions, self.rows_at_once = tokenizer, positions, rows_at_once
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if start is None:
            raise UserError("tasks: the policy's tokenizer has no beginning or end token, which an empty context needs")
        self.start = cast(int, start)
        """What stands before a text that follows nothing."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, and no special ones."""
        return cast("list[int]", self.tokenizer.encode(text, add_special_tokens=False))

    def __call__(self, policy: LiveEngine, texts: Sequence[Text], *, greedy: bool) -> list[tuple[float, bool]]:
        """Log-likelihood of each text, and whether each of its tokens is the most probable one.

        Args:
            policy: Its weights are asked.
            texts: A context that is too long loses its beginning.
            greedy: Whether to look for the latter; else it is False.

        Raises:
            UserError: a text alone is longer than the policy's positions.
        """
        order = sorted(range(len(texts)), key=lambda at: (len(texts[at].ids), len(texts[at].context)))
        found: list[tuple[float, bool]] = [(0.0, True)] * len(texts)
        want = ("logprobs", "distribution") if greedy else ("logprobs",)
        vocabulary = int(cast(Any, policy.model).lm.config.get_text_config().vocab_size) if greedy else 1
        asked = list(self._cut([at for at in order if texts[at].ids], texts, vocabulary))
        batches = [self._batch([texts[at] for at in rows]) for rows in asked]
        for rows, batch, output in zip(asked, batches, policy.evaluate(batches, want=want), strict=True):
            assert output.logprobs is not None
            sums = output.logprobs.double().sum(1).tolist()
            if output.distribution is None:
                most = [False] * len(rows)
            else:
                same = output.distribution.argmax(-1) == batch.sequences.response_ids
                most = (same | ~batch.mask).all(1).tolist()
            for at, *answer in zip(rows, sums, most, strict=True):
                found[at] = (float(answer[0]), bool(answer[1]))
        return found

    def _cut(self, order: list[int], texts: Sequence[Text], vocabulary: int) -> Iterator[list[int]]:
        """Rows of batches, of similar lengths, whose log-probabilities there is room for."""
        rows: list[int] = []
        for at in order:
            tokens = len(texts[at].ids)  # the most of the batch, as they grow
            if len(rows) >= self.rows_at_once or (rows and (len(rows) + 1) * tokens * vocabulary > MOST_LOGITS):
                yield rows
                rows = []
            rows.append(at)
        if rows:
            yield rows

    def _batch(self, texts: Sequence[Text]) -> Selectable:
        """Contexts that end, and texts that begin, in the same column."""
        pad, contexts = pad_id(self.tokenizer), []
        for text in texts:
            room = len(text.context) if self.positions is None else self.positions - len(text.ids)
            if room < 1:
                raise UserError(
                    f"tasks: a text has {len(text.ids)} tokens, but the model has {self.positions} positions "
                    "(max_position_embeddings), one before the text included; leave the task out"
                )
            contexts.append(text.context[-room:])
        before, after = max(map(len, contexts)), max(len(text.ids) for text in texts)
        rows, real = [], []
        for context, text in zip(contexts, texts, strict=True):
            left, right = before - len(context), after - len(text.ids)
            rows.append([pad] * left + context + text.ids + [pad] * right)
            real.append([False] * left + [True] * (len(context) + len(text.ids)) + [False] * right)
        mask = torch.tensor(real)
        return Selectable(Sequences(torch.tensor(rows), mask, prompt_width=before), mask[:, before:])


def _model(likelihoods: Likelihoods, policy: LiveEngine) -> Any:
    """The policy as the harness wants a model."""
    from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
    from lm_eval.utils import (  # pyright: ignore[reportMissingImports]
        get_rolling_token_windows,
        make_disjoint_window,
    )

    class InMemory(TemplateLM):
        @property
        def eot_token_id(self) -> int:
            return likelihoods.start

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return likelihoods.encode(string)

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            return likelihoods(policy, [Text(context, ids) for _, context, ids in requests], greedy=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            texts: list[Text] = []
            counts: list[int] = []
            for request in requests:
                windows = get_rolling_token_windows(
                    likelihoods.encode(request.args[0]),
                    prefix_token=likelihoods.start,
                    max_seq_len=(likelihoods.positions or 2048) - 1,
                    context_len=1,
                )
                own = [Text(*map(list, make_disjoint_window(window))) for window in windows]
                texts += own
                counts.append(len(own))
            values = iter(likelihoods(policy, texts, greedy=False))
            return [sum(next(values)[0] for _ in range(count)) for count in counts]

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            raise UserError("tasks: one has the model write an answer; only likelihoods can be asked for")

    return InMemory()
