"""The reference engine: exact accumulation whatever the cut, steps, and what it leaves as it was."""

import functools

import pytest
import tiny_runs
import torch
from torch import nn

from rlhf.algorithms.critics import SharedTrunk
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.objectives import Entropy, Mixture
from rlhf.algorithms.optimizers import SGD, AdamW
from rlhf.algorithms.policy_losses import Clip
from rlhf.algorithms.schedules import LinearDecay
from rlhf.data.collate import collate_labelled, collate_packed
from rlhf.data.examples import DemonstrationExample
from rlhf.engines.diagnosis import training_mode
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.local import Local
from rlhf.errors import NonFiniteError
from rlhf.models.modules import PolicyModel
from rlhf.types import Batch, Comparisons, Labelled, LossTerm, Prompts, Selectable, Sequences, Tally

NAN = float("nan")

# ------------------------------------------------------------------------------------------ case C1, by hand

ROWS = [[0, 2, 2, 2], [0, 6], [0, 1, 1, 1, 1], [0, 5, 5]]  # losses of the tokens after the first


@pytest.mark.parametrize(("mode", "denominator", "mean"), [("token", 10.0, 2.6), ("sequence", 4.0, 3.5)])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_the_update_is_that_of_the_whole_batch(mode, denominator, mean, size, order):  # case C1
    engine = Local().build(tiny_runs.Ids(), optimizer=SGD(lr=0.1))
    sequences, mask = tiny_runs.right_padded(ROWS)
    batch = Labelled(sequences=sequences, mask=mask).select(torch.tensor(order))

    def loss(outputs, part):
        return [LossTerm("sft", -outputs.logprobs, part.mask, mode=mode)], Tally()

    tally = engine.accumulate(batch.split(size), loss, {"sft": denominator}, want=("logprobs",))
    assert tally.compute() == {"loss/sft": pytest.approx(mean), "loss/total": pytest.approx(mean)}
    engine.step()
    assert engine.model.w.item() == pytest.approx(1 - 0.1 * mean, abs=1e-7)


def test_terms_have_their_own_denominators_and_weights():
    engine = Local().build(tiny_runs.Ids(), optimizer=SGD(lr=1.0))
    sequences, mask = tiny_runs.right_padded(ROWS)
    batch = Labelled(sequences=sequences, mask=mask)

    def loss(outputs, part):
        values = -outputs.logprobs
        return [LossTerm("a", values, part.mask), LossTerm("b", values, part.mask, mode="constant", coef=0.5)], Tally()

    for _ in range(2):  # as often as a step needs
        tally = engine.accumulate(batch.split(2), loss, {"a": 10.0, "b": 100.0}, want=("logprobs",))
    assert tally.compute() == {
        "loss/a": pytest.approx(2.6),
        "loss/b": pytest.approx(0.26),
        "loss/total": pytest.approx(2.73),
    }
    assert engine.gradient()[0].item() == pytest.approx(2 * 2.73)
    assert engine.step()["grad_norm"] == pytest.approx(2 * 2.73, abs=1e-5)
    assert engine.gradient()[0].item() == 0


# -------------------------------------------------------------------- the cut, the padding and the order do not matter

RESPONSES = [[5, 6, 7, 8, 9], [10], [11, 12], [13, 14, 15, 16], [5, 5, 9, 1], [1], [7, 7, 7], [8, 9]]
PROMPTS = [[3, 4], [17], [18, 19, 20], [21], [22, 23], [2, 2], [24], [25, 26]]


def layout(order, left=0, right=0, dtype=torch.float64) -> tuple[Sequences, torch.Tensor]:
    """Rollout rows as the sampler lays them out: left pads, prompt, response, right pads."""
    wide = max(len(PROMPTS[i]) for i in order) + left
    long = max(len(RESPONSES[i]) for i in order) + right
    ids = [[0] * (wide - len(PROMPTS[i])) + PROMPTS[i] + RESPONSES[i] for i in order]
    ids = torch.tensor([row + [0] * (wide + long - len(row)) for row in ids])
    real = [
        [0] * (wide - len(PROMPTS[i])) + [1] * (len(PROMPTS[i]) + len(RESPONSES[i]))
        + [0] * (long - len(RESPONSES[i]))
        for i in order
    ]  # fmt: skip
    mask = torch.tensor(real).bool()
    return Sequences(ids, mask, wide), mask[:, wide:]


def figures(order, width, seed, dtype):
    """[B, T] numbers that belong to a row and a token, NaN where there is no token."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(len(RESPONSES), 5, generator=generator, dtype=torch.float64).to(dtype)
    out = torch.full((len(order), width), NAN, dtype=dtype)
    for row, i in enumerate(order):
        out[row, : len(RESPONSES[i])] = table[i, : len(RESPONSES[i])]
    return out


def ppo_batch(order, left, right, dtype):
    sequences, mask = layout(order, left, right)
    named = functools.partial(figures, order, mask.shape[1], dtype=dtype)
    return Batch(
        sequences=sequences,
        mask=mask,
        rollout_logprobs=named(seed=1),
        old_logprobs=named(seed=2) - 4,
        ref_logprobs=named(seed=3) - 4,
        advantages=named(seed=4),
        returns=named(seed=5),
        values=named(seed=6),
    )


def labelled(order, left, right, dtype):
    sequences, mask = layout(order, left, right)
    return Labelled(sequences=sequences, mask=mask)


def comparisons(order, left, right, dtype):
    pairs = [i for pair in order if pair < 4 for i in (2 * pair, 2 * pair + 1)]  # pairs stay together
    sequences, mask = layout(pairs, left, right)
    weight = torch.tensor([0.5, 0.5, 1.0, 1.0, 0.25, 0.25, 0.75, 0.75], dtype=dtype)[pairs]
    return Comparisons(sequences=sequences, mask=mask, margin=weight * 0.1, weight=weight)


def ppo(aggregation="token", estimator="k2"):
    return tiny_runs.ppo(
        critic=SharedTrunk(coef=0.3),
        kl=KL(estimator=estimator, where="loss", controller=Fixed(coef=0.2)),
        entropy=Entropy(coef=0.1),
        policy_loss=Clip(aggregation=aggregation, dual=3.0),
        sampling=Sampling(max_new_tokens=8, temperature=0.7),
    )


MIXTURE = Mixture(data=tiny_runs.data("text"), coef=0.5)
CASES = {
    "sft": (tiny_runs.sft(), labelled),
    "reward": (tiny_runs.reward_modelling(margin=1.0, label_smoothing=0.1), comparisons),
    "ppo": (ppo(), ppo_batch),
    "ppo, per sequence": (ppo("sequence", "k3"), ppo_batch),
    "ppo, constant": (ppo("constant"), ppo_batch),
}


@functools.cache
def language_model():
    return tiny_runs.policy(dropout=0.1).build(lambda: ["abc=xyz", "fedcba=zzz"], seed=1)


def build(name, dtype):
    algorithm, _ = CASES[name]
    if name == "reward":
        from rlhf.models.storage import value_model_from

        model: nn.Module = value_model_from(language_model(), algorithm.head, seed=1)
    else:
        head = ppo().critic.build(language_model(), seed=2) if name.startswith("ppo") else None
        import copy

        model = PolicyModel(copy.deepcopy(language_model().module), head)
    return Local().build(model.to(dtype), optimizer=SGD())


def measure(name, dtype, *, order=range(8), size=8, left=0, right=0):
    """Metrics, and the gradient of everything that is trained."""
    algorithm, make = CASES[name]
    engine = build(name, dtype)
    batch = make(list(order), left, right, dtype)
    denominators = algorithm.denominators(batch)
    if name.startswith("ppo"):
        loss = functools.partial(algorithm.loss, kl_coef=0.2)
        tally = engine.accumulate(batch.split(size), loss, denominators, want=algorithm.want, temperature=0.7)
        texts = labelled(list(order), left, right, dtype)
        count = {"mixture": float(texts.mask.sum())}

        def mixture(outputs, part):
            return ([MIXTURE.term(outputs, part)], Tally())

        tally.merge(engine.accumulate(texts.split(size), mixture, count, want=("logprobs",)))
    else:
        tally = engine.accumulate(batch.split(size), algorithm.loss, denominators, want=algorithm.want)
    return tally.compute(), torch.cat([shard.flatten() for shard in engine.gradient()])


VARIANTS = {
    **{f"micro-batch {size}": {"size": size} for size in (1, 2, 4)},
    "another order": {"order": [3, 1, 0, 2, 7, 5, 6, 4], "size": 4},
    "left pads": {"left": 5},
    "right pads": {"right": 7},
    "all of them": {"order": [2, 6, 3, 0, 1, 4, 7, 5], "size": 2, "left": 3, "right": 4},
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_do_not_depend_on_the_layout(name, dtype, tolerance):  # cases A1, C1, I1
    figures, gradient = measure(name, dtype)
    assert gradient.dtype == dtype and gradient.isfinite().all() and gradient.norm() > 0.01
    for variant, settings in VARIANTS.items():
        found, moved = measure(name, dtype, **settings)
        assert found == pytest.approx(figures, rel=10 * tolerance, abs=tolerance), variant
        error = (moved - gradient).norm() / gradient.norm()
        assert error < tolerance, f"{variant}: {error:.1e}"


def test_every_term_is_in_the_gradient():
    metrics, _ = measure("ppo", torch.float64)
    names = {"loss/policy", "loss/kl", "loss/entropy", "loss/value", "loss/mixture", "loss/total"}
    assert names <= set(metrics)
    assert metrics["loss/total"] == pytest.approx(
        metrics["loss/policy"]
        + 0.2 * metrics["loss/kl"]
        + 0.1 * metrics["loss/entropy"]
        + 0.3 * metrics["loss/value"]
        + 0.5 * metrics["loss/mixture"]
    )


def test_packing_is_the_same_loss():
    examples = [DemonstrationExample(prompt_ids=PROMPTS[i], response_ids=RESPONSES[i]) for i in range(len(RESPONSES))]
    found = []
    for batch in (
        collate_labelled(examples, pad_id=0),
        collate_packed([examples[:3], examples[3:]], pad_id=0),
        collate_packed([examples], pad_id=0),
    ):
        engine, algorithm = build("sft", torch.float64), CASES["sft"][0]
        tally = engine.accumulate([batch], algorithm.loss, algorithm.denominators(batch), want=("logprobs",))
        found.append((tally.compute(), torch.cat([shard.flatten() for shard in engine.gradient()])))
    for figures, gradient in found[1:]:
        assert figures == pytest.approx(found[0][0], rel=1e-9)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------ dropout


def test_dropout_is_on_only_where_asked_for():  # case E6
    engine, algorithm = build("sft", torch.float32), CASES["sft"][0]
    batch = labelled(list(range(8)), 0, 0, torch.float32)
    once, twice = (next(iter(engine.evaluate([batch], want=("logprobs",)))).logprobs for _ in range(2))
    assert torch.equal(once, twice)

    def losses(**settings):
        found = []
        for _ in range(2):
            tally = engine.accumulate([batch], algorithm.loss, {"sft": 1.0}, want=("logprobs",), **settings)
            found.append(tally.compute()["loss"])
        return found

    plain, dropped = losses(), losses(dropout=True)
    assert plain[0] == plain[1] and dropped[0] != dropped[1]


def test_modes_are_as_before_even_after_an_error():  # case E6
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1))
    model[0].eval()
    for mode in (True, False):
        with pytest.raises(RuntimeError), training_mode(model, mode):
            assert [m.training for m in model.modules()] == [mode] * 3
            raise RuntimeError
        assert [m.training for m in model.modules()] == [True, False, True]


# -------------------------------------------------------------------------------------------------------------- steps


def scalar_loss(outputs, part):
    return [LossTerm("sft", -outputs.logprobs, part.mask)], Tally()


SEQUENCES, MASK = tiny_runs.right_padded([[0, 3]])
ONE = Labelled(sequences=SEQUENCES, mask=MASK)


def test_schedule_and_clipping_by_hand():
    engine = Local().build(
        tiny_runs.Ids(), optimizer=SGD(lr=0.5), schedule=LinearDecay(), total_steps=4, max_grad_norm=1.0
    )
    made = []
    for _ in range(4):
        engine.accumulate([ONE], scalar_loss, {"sft": 1.0}, want=("logprobs",))
        made.append(engine.step())
    assert [step["grad_norm"] for step in made] == [3.0] * 4  # before clipping
    assert [step["lr"] for step in made] == [0.5, 0.375, 0.25, 0.125]
    assert engine.model.w.item() == pytest.approx(1 - 1.25, abs=1e-5)  # each gradient is clipped to 1
    assert engine.steps == 4


def test_a_gradient_that_is_not_finite_moves_nothing():  # case E9
    engine = Local().build(tiny_runs.Ids(), optimizer=AdamW(lr=0.5))
    engine.accumulate([ONE], scalar_loss, {"sft": 1.0}, want=("logprobs",))
    engine.model.w.grad.fill_(NAN)
    with pytest.raises(NonFiniteError, match="nan at optimiser step 1; no weight was changed"):
        engine.step()
    assert engine.model.w.item() == 1.0 and engine.steps == 0


def test_half_precision_weights_are_refused():
    with pytest.raises(ValueError, match=r"weight weight is torch\.bfloat16.*set the policy's dtype to fp32"):
        Local().build(nn.Linear(1, 1).bfloat16(), optimizer=SGD())


def test_frozen_without_an_optimiser():
    model = nn.Linear(1, 1)
    engine = Local().build(model)
    assert not any(p.requires_grad for p in model.parameters()) and engine.master() == []


def test_state_continues_exactly():
    def fresh():
        settings = {"optimizer": AdamW(lr=0.1), "schedule": LinearDecay(), "total_steps": 6}
        return Local().build(tiny_runs.Ids(), **settings)

    def step(engine):
        engine.accumulate([ONE], scalar_loss, {"sft": 1.0}, want=("logprobs",))
        return engine.step()

    whole = fresh()
    for _ in range(3):
        step(whole)
    import copy

    state = copy.deepcopy(whole.state_dict())
    resumed = fresh()
    resumed.load_state_dict(state)
    for _ in range(3):
        assert step(whole) == step(resumed)
    assert torch.equal(whole.model.w, resumed.model.w) and resumed.steps == 6


def test_substituted_weights_are_given_back_after_an_error():
    engine = Local().build(tiny_runs.Ids(), optimizer=SGD())
    with pytest.raises(RuntimeError), engine.substituted([torch.tensor(7.0)]):
        assert engine.model.w.item() == 7
        assert engine.full_state()["w"].item() == 7
        raise RuntimeError
    assert engine.model.w.item() == 1


def test_inner_product_and_gradient_copy():
    engine = Local().build(tiny_runs.Ids(), optimizer=SGD())
    assert engine.inner([torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])], [torch.ones(2), torch.ones(1, 1)]) == 6
    engine.accumulate([ONE], scalar_loss, {"sft": 1.0}, want=("logprobs",))
    before = engine.gradient()
    engine.accumulate([ONE], scalar_loss, {"sft": 1.0}, want=("logprobs",))
    assert (before[0].item(), engine.gradient()[0].item()) == (3, 6)


# ----------------------------------------------------------------------------------------------------- sampling, config


def test_generating_needs_no_training_state():
    lm = language_model()
    engine = Local().build(PolicyModel(lm.module))
    prompts = Prompts([[3, 4], [17]], ["a", "b"], ["s", "s"])
    settings = {"seed": 5, "counters": [0, 1], "stop_ids": [lm.tokenizer.eos_token_id]}
    first, second = (engine.generate(prompts, Sampling(max_new_tokens=6), lm.tokenizer, **settings) for _ in range(2))
    assert torch.equal(first.sequences.ids, second.sequences.ids)
    model = Selectable(first.sequences, first.mask)
    scored = next(iter(engine.evaluate([model], want=("logprobs",)))).logprobs
    torch.testing.assert_close(scored, first.rollout_logprobs, atol=1e-5, rtol=0)


def test_micro_batch_size_is_checked():
    assert Local().rows_at_once == 64 and Local(micro_batch_size=3).rows_at_once == 3
    with pytest.raises(ValueError, match="micro_batch_size is 0"):
        Local(micro_batch_size=0)


def test_ids_that_the_tokenizer_has_no_token_for_are_never_drawn():
    lm = tiny_runs.policy().build(lambda: ["abc"], seed=1)
    size = len(lm.tokenizer)
    lm.module.resize_token_embeddings(size + 24, mean_resizing=False)
    with torch.no_grad():  # the filling is what the model likes best
        lm.module.lm_head.weight[size:] = 5 * lm.module.transformer.wte.weight[:24]
    engine = Local().build(PolicyModel(lm.module))
    prompts = Prompts([[5, 6]] * 64, ["p"] * 64, ["s"] * 64)
    sampling = Sampling(max_new_tokens=8)
    rollout = engine.generate(prompts, sampling, lm.tokenizer, seed=1, counters=range(64), stop_ids=[1])
    assert rollout.sequences.response_ids[rollout.mask].max() < size
    outputs = next(engine.evaluate([Selectable(rollout.sequences, rollout.mask)], want=("logprobs",)))
    torch.testing.assert_close(outputs.logprobs, rollout.rollout_logprobs, atol=1e-4, rtol=0)
    assert (rollout.behaviour_logprobs - rollout.rollout_logprobs)[rollout.mask].max() > 0.1  # it would have been drawn
