"""Every kind of component as an abstract base class with its contract: the map of the house.

A *component* is a frozen, keyword-only dataclass derived from one of these bases. Its fields are its YAML schema; it
holds settings and nothing else: no model, no tensor, no rank. What has state is *built* by the component and is a live
object with ``state_dict`` and ``load_state_dict``. Deriving from a base is registering: see ``rlhf.registry``.

==================  ====================================================  ======================================
kind                what it says                                          what it makes
==================  ====================================================  ======================================
``algorithms.py``
Algorithm           a stage: OfflineAlgorithm learns from fixed data,     loss terms, for a loop of ``rlhf.loops``
                    OnlineAlgorithm from its own samples
Deployment          how stages run on the machines at hand                stages with engines
``data.py``
Source              where rows come from                                  a data set
Template            how a row becomes token ids                           ids
Blender             in which order the rows of sources are drawn          draws
``models.py``
Policy              where a language model comes from                     LanguageModel
Critic              where values come from                                a value model, or a head
ValueHead           how a scalar is read from hidden states               a module
RewardModel         what a response is worth                              Scorer
``updates.py``
AdvantageEstimator  how much better a token was than expected             advantages
PolicyLoss          what raises good tokens' probability                  a loss per token
SamplerCorrection   what if the sampler's probabilities are others        weights per token
RolloutFilter       which responses are learned from                      a choice of rows
KLController        how the weight of the KL penalty moves                LiveController
WeightAverage       a running average of the weights                      LiveAverage
Objective           a further term of the policy's loss                   a loss term
Optimizer           how gradients become weight changes                   an optimiser of torch
Schedule            the learning rate over a stage                        a factor per step
``engines.py``
Engine              where and how models run                              LiveEngine
Inference           how an engine samples by a second form of weights     LiveInference
``figures.py``
EvaluationMetric    what is measured at every evaluation                  LiveMetric, of a MetricSetup
Selection           which weights are kept                                by Worth, where SelectionByEvaluation
MetricSink          where figures go                                      LiveSink
``executors.py``
Executor            where the cells of a grid run                         LiveExecutor, of Jobs that have Ended
==================  ====================================================  ======================================

``inputs.py`` has what several kinds share: ModelPath, a setting that leads to a saved model, and NeedsInputs.
"""

from rlhf.interfaces.algorithms import Algorithm, Deployment, OfflineAlgorithm, OnlineAlgorithm
from rlhf.interfaces.data import Blender, Source, Template
from rlhf.interfaces.engines import Engine, Inference, LiveEngine, LiveInference, LossFn, Model
from rlhf.interfaces.executors import Ended, Executor, Job, LiveExecutor
from rlhf.interfaces.figures import (
    Evaluated,
    EvaluationMetric,
    LiveMetric,
    LiveSink,
    MetricSetup,
    MetricSink,
    Selection,
    SelectionByEvaluation,
    Worth,
)
from rlhf.interfaces.inputs import ModelPath, NeedsInputs
from rlhf.interfaces.models import Critic, LanguageModel, Policy, RewardModel, Scorer, ValueHead
from rlhf.interfaces.updates import (
    AdvantageEstimator,
    KLController,
    LiveAverage,
    LiveController,
    Objective,
    Optimizer,
    PolicyLoss,
    RolloutFilter,
    SamplerCorrection,
    Schedule,
    WeightAverage,
)

__all__ = [
    "AdvantageEstimator",
    "Algorithm",
    "Blender",
    "Critic",
    "Deployment",
    "Ended",
    "Engine",
    "Evaluated",
    "EvaluationMetric",
    "Executor",
    "Inference",
    "Job",
    "KLController",
    "LanguageModel",
    "LiveAverage",
    "LiveController",
    "LiveEngine",
    "LiveExecutor",
    "LiveInference",
    "LiveMetric",
    "LiveSink",
    "LossFn",
    "MetricSetup",
    "MetricSink",
    "Model",
    "ModelPath",
    "NeedsInputs",
    "Objective",
    "OfflineAlgorithm",
    "OnlineAlgorithm",
    "Optimizer",
    "Policy",
    "PolicyLoss",
    "RewardModel",
    "RolloutFilter",
    "SamplerCorrection",
    "Schedule",
    "Scorer",
    "Selection",
    "SelectionByEvaluation",
    "Source",
    "Template",
    "ValueHead",
    "WeightAverage",
    "Worth",
]
