"""Data: from files, the hub or the built-in world to batches of token ids."""

from rlhf.data.blenders import Weighted as Weighted  # two kinds have a Weighted, so it is public here, not in rlhf
