"""Terms added to the policy's loss: the pretraining mixture, self-imitation and the entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlhf.data.dataset import Data
from rlhf.errors import UserError, require
from rlhf.interfaces import Objective
from rlhf.types import Batch, Labelled, LossTerm, Outputs


@dataclass(frozen=True, kw_only=True)
class Mixture(Objective):
    """The pretraining mixture (PPO-ptx): a next-token loss on plain text in every optimiser step.

    L = L_policy + coef · (−1/N Σ log π(x_t | x_<t)), N the tokens of this term over all ranks.
    Source: arXiv:2203.02155, eq. 2 (γ there is coef; there both terms are summed over their own batches).

    Args:
        data: Blend of plain texts.
        coef: Weight of the term.
        batch_size: Texts per optimiser step over all ranks; null takes the mini-batch size.
        gradient_every: Log the gradient norm of this term, of the policy's and their cosine every so many optimiser
            steps; 0 never.
    """

    data: Data
    coef: float = 1.0
    batch_size: int | None = None
    gradient_every: int = 0

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef, gradient_every=self.gradient_every)
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size}; must be at least 1, or null")

    def term(self, outputs: Outputs, batch: Labelled | Batch) -> LossTerm:
        assert outputs.logprobs is not None
        return LossTerm("mixture", -outputs.logprobs, batch.mask, coef=self.coef)


@dataclass(frozen=True, kw_only=True)
class Imitation(Objective):
    """Likelihood of the iteration's own good responses: self-imitation.

    L = L_policy + coef · (−1/N Σ log π(y_t | x, y_<t)), over the N tokens of responses with a score above ``above``.
    Source: arXiv:2504.05118, the positive-example loss of VAPO.

    Args:
        coef: Weight of the term.
        above: Responses with a higher (normalised) score are imitated.
    """

    coef: float = 0.1
    above: float = 0.0

    def __post_init__(self) -> None:
        require(at_least=0, coef=self.coef)

    def mask(self, batch: Batch) -> Tensor:
        """[B, T] bool, True on the tokens that are imitated."""
        assert batch.scores is not None
        return batch.mask & (batch.scores > self.above)[:, None]

    def term(self, outputs: Outputs, batch: Labelled | Batch) -> LossTerm:
        assert outputs.logprobs is not None and isinstance(batch, Batch)
        return LossTerm("imitation", -outputs.logprobs, self.mask(batch), coef=self.coef)


@dataclass(frozen=True, kw_only=True)
class Entropy(Objective):
    """Entropy bonus: −coef · H(π(· | state)), mean over the rollouts' tokens.

    Args:
        coef: Weight of the bonus; positive keeps the policy broad.
    """

    coef: float = 0.01

    def term(self, outputs: Outputs, batch: Labelled | Batch) -> LossTerm:
        assert outputs.entropy is not None
        return LossTerm("entropy", -outputs.entropy, batch.mask, coef=self.coef)
