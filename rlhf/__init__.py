"""A research framework for reinforcement learning from human feedback.

The public names, imported at first use: ``import rlhf`` itself is instant. Saved configs name classes by them
(``rlhf.PPO``), so they survive a move of the file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # what _MODULES says, for type checkers and editors
    from rlhf.algorithms.advantages import (
        GAE as GAE,
        GreedyBaseline as GreedyBaseline,
        GroupNorm as GroupNorm,
        LeaveOneOut as LeaveOneOut,
        Ones as Ones,
        OptimalTokenBaseline as OptimalTokenBaseline,
        Returns as Returns,
    )
    from rlhf.algorithms.averaging import EMA as EMA, SWA as SWA, Polyak as Polyak
    from rlhf.algorithms.cispo import CISPO as CISPO
    from rlhf.algorithms.constraints import Constraint as Constraint
    from rlhf.algorithms.corrections import MaskedIS as MaskedIS, TruncatedIS as TruncatedIS
    from rlhf.algorithms.covariance_losses import ClipCov as ClipCov, KLCov as KLCov
    from rlhf.algorithms.critics import OwnTrunk as OwnTrunk, SharedTrunk as SharedTrunk
    from rlhf.algorithms.distillation import OnPolicyDistillation as OnPolicyDistillation
    from rlhf.algorithms.evaluation import Evaluation as Evaluation
    from rlhf.algorithms.evaluation_metrics import (
        BestAtK as BestAtK,
        Distinct as Distinct,
        PassAtK as PassAtK,
        Perplexity as Perplexity,
        WinRate as WinRate,
    )
    from rlhf.algorithms.filters import (
        BestOfGroup as BestOfGroup,
        InformativeGroups as InformativeGroups,
        ScoresAbove as ScoresAbove,
    )
    from rlhf.algorithms.gmpo import GMPO as GMPO
    from rlhf.algorithms.grpo import DAPO as DAPO, GRPO as GRPO, DrGRPO as DrGRPO
    from rlhf.algorithms.gspo import GSPO as GSPO
    from rlhf.algorithms.harness import LMEval as LMEval
    from rlhf.algorithms.kl import (
        KL as KL,
        Adaptive as Adaptive,
        Budget as Budget,
        Fixed as Fixed,
        Schedule as Schedule,
    )
    from rlhf.algorithms.lagrangian import PPOLagrangian as PPOLagrangian
    from rlhf.algorithms.normalization import ScoreNormalization as ScoreNormalization
    from rlhf.algorithms.objectives import Entropy as Entropy, Imitation as Imitation, Mixture as Mixture
    from rlhf.algorithms.optimizers import SGD as SGD, AdamW as AdamW, ParameterGroup as ParameterGroup
    from rlhf.algorithms.policy_losses import (
        Clip as Clip,
        DetachedClip as DetachedClip,
        DualClip as DualClip,
        GeometricMean as GeometricMean,
        KLPenalty as KLPenalty,
        PolicyGradient as PolicyGradient,
        SequenceClip as SequenceClip,
    )
    from rlhf.algorithms.ppo import PPO as PPO
    from rlhf.algorithms.reinforce_plus_plus import (
        ReinforcePlusPlus as ReinforcePlusPlus,
        ReinforcePlusPlusBaseline as ReinforcePlusPlusBaseline,
    )
    from rlhf.algorithms.rejection_sampling import RejectionSampling as RejectionSampling
    from rlhf.algorithms.remax import ReMax as ReMax
    from rlhf.algorithms.reward_modelling import RewardModelling as RewardModelling
    from rlhf.algorithms.rloo import RLOO as RLOO
    from rlhf.algorithms.schedules import Constant as Constant, CosineDecay as CosineDecay, LinearDecay as LinearDecay
    from rlhf.algorithms.selection import Averaged as Averaged, Best as Best, Last as Last
    from rlhf.algorithms.sft import SFT as SFT
    from rlhf.algorithms.vapo import VAPO as VAPO
    from rlhf.data.blenders import (
        Concatenate as Concatenate,
        Curriculum as Curriculum,
        Lesson as Lesson,
        Proportional as Proportional,
        RoundRobin as RoundRobin,
        Temperature as Temperature,
    )
    from rlhf.data.dataset import Data as Data
    from rlhf.data.rated import RatedTexts as RatedTexts
    from rlhf.data.reasoning import ReasoningGym as ReasoningGym
    from rlhf.data.sources import Files as Files, Generator as Generator, Hub as Hub, World as World
    from rlhf.data.tasks import (
        Arithmetic as Arithmetic,
        IncreasingNumbers as IncreasingNumbers,
        ReverseText as ReverseText,
    )
    from rlhf.data.templates import Chat as Chat, Plain as Plain
    from rlhf.data.trees import MessageTrees as MessageTrees
    from rlhf.deployment.presets import MultiNode as MultiNode, SingleGPU as SingleGPU, SingleNode as SingleNode
    from rlhf.engines.hybrid import Hybrid as Hybrid
    from rlhf.engines.inference.sampling import Sampling as Sampling
    from rlhf.engines.inference.tensor_parallel import TensorParallel as TensorParallel
    from rlhf.engines.local import Local as Local
    from rlhf.engines.zero import Zero as Zero
    from rlhf.experiment import Experiment as Experiment
    from rlhf.grid.executors.local import LocalPool as LocalPool
    from rlhf.grid.executors.ray import Ray as Ray
    from rlhf.grid.executors.slurm import Slurm as Slurm
    from rlhf.grid.settings import Grid as Grid, Metric as Metric
    from rlhf.interfaces import ModelPath as ModelPath
    from rlhf.metrics import TensorBoard as TensorBoard, WandB as WandB
    from rlhf.models.heads import MLP as MLP, Linear as Linear
    from rlhf.models.lora import LoRA as LoRA
    from rlhf.models.policy import FromScratch as FromScratch, Pretrained as Pretrained
    from rlhf.models.rewards import (
        ArithmeticReward as ArithmeticReward,
        Ensemble as Ensemble,
        ExactMatchReward as ExactMatchReward,
        FunctionReward as FunctionReward,
        LengthPenalty as LengthPenalty,
        NoReward as NoReward,
        OverlongPenalty as OverlongPenalty,
        ReasoningGymReward as ReasoningGymReward,
        RegexReward as RegexReward,
        RemoteReward as RemoteReward,
        ScalarReward as ScalarReward,
        StepFunctionReward as StepFunctionReward,
        StepScalarReward as StepScalarReward,
    )

_MODULES = {
    "rlhf.algorithms.advantages": [
        "GAE",
        "GreedyBaseline",
        "GroupNorm",
        "LeaveOneOut",
        "Ones",
        "OptimalTokenBaseline",
        "Returns",
    ],
    "rlhf.algorithms.averaging": ["EMA", "Polyak", "SWA"],
    "rlhf.algorithms.cispo": ["CISPO"],
    "rlhf.algorithms.constraints": ["Constraint"],
    "rlhf.algorithms.corrections": ["MaskedIS", "TruncatedIS"],
    "rlhf.algorithms.covariance_losses": ["ClipCov", "KLCov"],
    "rlhf.algorithms.critics": ["OwnTrunk", "SharedTrunk"],
    "rlhf.algorithms.evaluation": ["Evaluation"],
    "rlhf.algorithms.evaluation_metrics": ["BestAtK", "Distinct", "PassAtK", "Perplexity", "WinRate"],
    "rlhf.algorithms.harness": ["LMEval"],
    "rlhf.algorithms.distillation": ["OnPolicyDistillation"],
    "rlhf.algorithms.filters": ["BestOfGroup", "InformativeGroups", "ScoresAbove"],
    "rlhf.algorithms.gmpo": ["GMPO"],
    "rlhf.algorithms.grpo": ["DAPO", "DrGRPO", "GRPO"],
    "rlhf.algorithms.gspo": ["GSPO"],
    "rlhf.algorithms.kl": ["Adaptive", "Budget", "Fixed", "KL", "Schedule"],
    "rlhf.algorithms.lagrangian": ["PPOLagrangian"],
    "rlhf.algorithms.normalization": ["ScoreNormalization"],
    "rlhf.algorithms.objectives": ["Entropy", "Imitation", "Mixture"],
    "rlhf.algorithms.optimizers": ["AdamW", "ParameterGroup", "SGD"],
    "rlhf.algorithms.policy_losses": [
        "Clip",
        "DetachedClip",
        "DualClip",
        "GeometricMean",
        "KLPenalty",
        "PolicyGradient",
        "SequenceClip",
    ],
    "rlhf.algorithms.ppo": ["PPO"],
    "rlhf.algorithms.reinforce_plus_plus": ["ReinforcePlusPlus", "ReinforcePlusPlusBaseline"],
    "rlhf.algorithms.rejection_sampling": ["RejectionSampling"],
    "rlhf.algorithms.remax": ["ReMax"],
    "rlhf.algorithms.reward_modelling": ["RewardModelling"],
    "rlhf.algorithms.rloo": ["RLOO"],
    "rlhf.algorithms.schedules": ["Constant", "CosineDecay", "LinearDecay"],
    "rlhf.algorithms.selection": ["Averaged", "Best", "Last"],
    "rlhf.algorithms.sft": ["SFT"],
    "rlhf.algorithms.vapo": ["VAPO"],
    "rlhf.data.blenders": ["Concatenate", "Curriculum", "Lesson", "Proportional", "RoundRobin", "Temperature"],
    "rlhf.data.dataset": ["Data"],
    "rlhf.data.rated": ["RatedTexts"],
    "rlhf.data.reasoning": ["ReasoningGym"],
    "rlhf.data.sources": ["Files", "Generator", "Hub", "World"],
    "rlhf.data.tasks": ["Arithmetic", "IncreasingNumbers", "ReverseText"],
    "rlhf.data.templates": ["Chat", "Plain"],
    "rlhf.data.trees": ["MessageTrees"],
    "rlhf.deployment.presets": ["MultiNode", "SingleGPU", "SingleNode"],
    "rlhf.engines.hybrid": ["Hybrid"],
    "rlhf.engines.inference.sampling": ["Sampling"],
    "rlhf.engines.inference.tensor_parallel": ["TensorParallel"],
    "rlhf.engines.local": ["Local"],
    "rlhf.engines.zero": ["Zero"],
    "rlhf.experiment": ["Experiment"],
    "rlhf.grid.executors.local": ["LocalPool"],
    "rlhf.grid.executors.ray": ["Ray"],
    "rlhf.grid.executors.slurm": ["Slurm"],
    "rlhf.grid.settings": ["Grid", "Metric"],
    "rlhf.interfaces": ["ModelPath"],
    "rlhf.metrics": ["TensorBoard", "WandB"],
    "rlhf.models.heads": ["Linear", "MLP"],
    "rlhf.models.lora": ["LoRA"],
    "rlhf.models.policy": ["FromScratch", "Pretrained"],
    "rlhf.models.rewards": [
        "ArithmeticReward",
        "Ensemble",
        "ExactMatchReward",
        "FunctionReward",
        "LengthPenalty",
        "NoReward",
        "OverlongPenalty",
        "ReasoningGymReward",
        "RegexReward",
        "RemoteReward",
        "ScalarReward",
        "StepFunctionReward",
        "StepScalarReward",
    ],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rlhf' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
