"""What a response is worth: trained models, functions, rules, a server, scores per step, and ways to combine them."""

from rlhf.models.rewards.combined import Ensemble as Ensemble, Weighted as Weighted
from rlhf.models.rewards.function import FunctionReward as FunctionReward
from rlhf.models.rewards.length import LengthPenalty as LengthPenalty, OverlongPenalty as OverlongPenalty
from rlhf.models.rewards.nothing import NoReward as NoReward
from rlhf.models.rewards.process import StepFunctionReward as StepFunctionReward, StepScalarReward as StepScalarReward
from rlhf.models.rewards.remote import RemoteReward as RemoteReward
from rlhf.models.rewards.rules import (
    ArithmeticReward as ArithmeticReward,
    ExactMatchReward as ExactMatchReward,
    RegexReward as RegexReward,
)
from rlhf.models.rewards.scalar import ScalarReward as ScalarReward
