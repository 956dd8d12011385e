"""Models: where a policy comes from, what engines run, value heads, reward models, folders on disk."""

from rlhf.models.rewards import Weighted as Weighted  # two kinds have a Weighted, so it is public here, not in rlhf
