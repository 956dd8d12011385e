"""Whether the data of an on-policy stage fit its model and its rewards, looked at before a prompt is answered."""

from __future__ import annotations

from rlhf.algorithms.ppo import PPO
from rlhf.data.preparation import Prepared
from rlhf.errors import UserError, telling
from rlhf.models.modules import PolicyModel


def check_data(settings: PPO, policy: PolicyModel, data: Prepared, mixture: Prepared | None) -> None:
    """Refuses prompts that leave no room for a response, and rows without a column that a reward reads.

    Args:
        settings: Of the stage.
        policy: Its model.
        data: Its prompts.
        mixture: The texts mixed in, where there are any.

    Raises:
        UserError: which setting, and what the rows have.
    """
    positions = getattr(policy.lm.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None:
        longest = max(data.train.longest, data.heldout.longest)
        if problems := settings.check_positions(positions, longest):
            raise UserError("; ".join(problems))
        if mixture is not None and mixture.train.longest > positions:
            raise UserError(
                f"mixture.data.max_tokens: a text has {mixture.train.longest} tokens, but the model has {positions} "
                "positions (max_position_embeddings); lower it to that, which cuts texts into pieces"
            )
    asked = {"reward": settings.reward}
    asked |= {f"constraints.{name}.cost": constraint.cost for name, constraint in settings.constraints.items()}
    for examples, rewards in ((data.train, asked), (data.heldout, settings.evaluation.judges())):
        columns = {name: list(rows[0].columns) for name, rows in examples.rows.items() if len(rows)}
        for place, reward in rewards.items():
            with telling(place):
                reward.check_columns(columns)
