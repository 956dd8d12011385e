"""A small world of product reviews whose true reward is known: no download, no labeller, learnable in minutes on a CPU.

A prompt names a product and two or three aspects; a response reviews them in short sentences written by a grammar.
`gold_reward` reads off any text whatever how good a review of *that* prompt it is, so that over-optimisation of a
learnt reward can be measured instead of guessed. Annotators are simulated: they prefer the better response with
Bradley–Terry noise.

Every generator is a pure function of its arguments: equal seeds give equal rows, different functions or seeds give
independent streams. A fixed eighth of all (product, aspects) combinations is seen only with ``held_out=True``.
"""

import itertools
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import tanh
from typing import Any, NamedTuple

from rlhf.data.world_words import (
    ARTICLES,
    ASPECTS,
    BAD,
    CLOSINGS,
    DEGREES,
    DETAILS,
    FAIR,
    GOOD,
    OPENINGS,
    OPINIONS,
    PRODUCTS,
    REQUESTS,
    SLOTS,
)

POLARITY = dict.fromkeys(GOOD, 1.0) | dict.fromkeys(FAIR, 0.0) | dict.fromkeys(BAD, -1.0)
_TAGS = {
    word: "{" + slot + "}" for slot in ("product", "aspect", "opinion", "degree", "person") for word in SLOTS[slot]
}
_SLOT = re.compile(r"\{(\w+)\}")
_TOKEN = re.compile(r"[a-z]+|[^a-z\s]")
_DETAIL = re.compile(rf"\b(?:{'|'.join(DETAILS)})\b")


def _tags(text: str) -> list[str]:
    """Words and marks of a text, slot words replaced by their slot, between full stops."""
    tokens: list[str] = _TOKEN.findall(text.lower())
    return [".", *(_TAGS.get(token, token) for token in tokens)]


def _legal() -> Iterator[tuple[str, str]]:
    """Pairs of neighbouring tags that the grammar can write."""
    for template in OPENINGS + OPINIONS + CLOSINGS:
        for row in itertools.zip_longest(*SLOTS.values()):
            words = {slot: word or choices[0] for (slot, choices), word in zip(SLOTS.items(), row, strict=True)}
            yield from itertools.pairwise(_tags(template.format_map(words)))


_LEGAL = frozenset(_legal())


# ------------------------------------------------------------------------------------------------------ gold reward


class _Reading(NamedTuple):
    """What the gold reward keeps of a response before it looks at the prompt."""

    value: dict[str, float]  # aspect -> (2 + polarity + detail/2) / aspects in the sentence, of its first sentence
    products: frozenset[str]
    form: float  # the terms that do not depend on the prompt


@lru_cache(maxsize=1 << 14)
def _read(response: str) -> _Reading:
    value: dict[str, float] = {}
    content: list[str] = []
    products: set[str] = set()
    for sentence in response.lower().split("."):
        words = _TOKEN.findall(sentence)
        aspects = dict.fromkeys(word for word in words if _TAGS.get(word) == "{aspect}")
        opinions = [word for word in words if word in POLARITY]
        polarity = sum(POLARITY[word] for word in opinions) / max(len(opinions), 1)
        worth = (2.0 if opinions else 1.0) + polarity + 0.5 * bool(_DETAIL.search(sentence))
        for aspect in aspects:
            value.setdefault(aspect, worth / len(aspects))
        content += [word for word in words if word in POLARITY or word in aspects]
        products.update(word for word in words if _TAGS.get(word) == "{product}")
    tags = _tags(response)
    fluency = sum(pair in _LEGAL for pair in itertools.pairwise(tags)) / max(len(tags) - 1, 1)
    repetition = 1.0 - len(set(content)) / len(content) if content else 0.0
    excess = max(0, len(tags) - 1 - 44)
    form = 2.0 * (fluency - 1.0) - 2.0 * repetition - 0.1 * min(excess, 20) - 0.5 * (tags[-1] != "." or len(tags) == 1)
    return _Reading(value, frozenset(products), form)


@lru_cache(maxsize=1 << 12)
def _asked(prompt: str) -> tuple[frozenset[str], frozenset[str]]:
    words = _TOKEN.findall(prompt.lower())
    return frozenset(words).intersection(PRODUCTS), frozenset(words).intersection(ASPECTS)


def gold_reward(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    """The true worth of each response to its prompt; exact, deterministic and defined for any text.

    With A the aspects and P the product that the prompt names, and a token a word or a mark (case ignored),

        gold = mean_{a in A} v(a)  +  ½·[P named]  −  ½·min(strays, 4)
               − 2·(1 − fluency)  −  2·repetition  −  0.1·min(excess, 20)  −  ½·[unfinished]

    * v(a) = 0 if the response does not mention a; else, in the first sentence that does, (w + s + ½d) / k: w is 2 if
      the sentence holds an opinion and 1 if not, s the mean polarity of its opinions (−1, 0 or 1 each), d whether it
      holds a detail ("on long trips"), k the number of aspects in it. Praise of anything else is worth nothing.
    * strays: distinct aspects and products in the response that the prompt does not name.
    * fluency: share of neighbouring tokens, sentence starts included, that the grammar can write next to each other.
    * repetition: share of aspect and opinion words that were said before in the response.
    * excess: tokens beyond 44. unfinished: the last token is not a full stop.

    A perfect response is worth 4, an empty one −2.5 and nothing less than −10.5.

    Args:
        prompts: The prompts, one for each response.
        responses: What a policy answered; any text.

    Returns:
        One number for each response.
    """
    scores = []
    for prompt, response in zip(prompts, responses, strict=True):
        products, aspects = _asked(prompt)
        value, named, form = _read(response)
        fit = sum(value.get(aspect, 0.0) for aspect in aspects) / max(len(aspects), 1)
        strays = len(value.keys() - aspects) + len(named - products)
        scores.append(fit + 0.5 * bool(named & products) - 0.5 * min(strays, 4) + form)
    return scores


# ---------------------------------------------------------------------------------------------------------- writers


class _Task(NamedTuple):
    """A prompt and what it asks for."""

    prompt: str
    product: str
    aspects: tuple[str, ...]


def _task(rng: random.Random, held_out: bool) -> _Task:
    while True:
        product, aspects = rng.choice(PRODUCTS), tuple(rng.sample(ASPECTS, rng.choice((2, 3))))
        if (zlib.crc32(" ".join((product, *sorted(aspects))).encode()) % 8 == 0) == held_out:
            listed = ", ".join(aspects[:-1]) + " and " + aspects[-1]
            return _Task(rng.choice(REQUESTS).format(product=product, aspects=listed), product, aspects)


def _fill(rng: random.Random, templates: Sequence[str], **given: str) -> str:
    return _SLOT.sub(lambda slot: given.get(slot[1], "") or rng.choice(SLOTS[slot[1]]), rng.choice(templates))


def _write(rng: random.Random, product: str, aspects: Sequence[str], *, tone: float, detail: float) -> list[str]:
    """Sentences of a fluent review, its aspects in any order; `tone`, `detail`: probabilities of praise and detail."""
    half = len(OPINIONS) // 2
    sentences = [_fill(rng, OPENINGS, product=product)] if rng.random() < 0.7 else []
    for aspect in rng.sample(aspects, len(aspects)):
        words = GOOD if rng.random() < tone else FAIR if rng.random() < 0.3 else BAD
        shapes = OPINIONS[half:] if rng.random() < detail else OPINIONS[:half]
        sentences.append(_fill(rng, shapes, aspect=aspect, opinion=rng.choice(words)))
    if rng.random() < 0.3:
        sentences.append(_fill(rng, CLOSINGS))
    return sentences


def _others(rng: random.Random, aspects: Sequence[str], n: int) -> list[str]:
    return rng.sample([aspect for aspect in ASPECTS if aspect not in aspects], n)


def _demonstration(rng: random.Random, task: _Task) -> list[str]:
    """A decent review: now and then an aspect is forgotten or a stray one added; tone and detail vary by writer."""
    aspects = [aspect for aspect in task.aspects if rng.random() < 0.85]
    if rng.random() < 0.2:
        aspects += _others(rng, task.aspects, 1)
    product = task.product if rng.random() < 0.9 else rng.choice(PRODUCTS)
    return _write(rng, product, aspects, tone=rng.betavariate(1.5, 1.5), detail=0.6 * rng.random())


def _break(rng: random.Random, sentences: list[str]) -> str:
    """Damage a review the way a policy does: loops, fragments, lost or swapped words, heaps of keywords."""
    kind = rng.randrange(6)
    if kind == 0:  # a sentence over and over
        return " ".join([*sentences, *[rng.choice(sentences)] * rng.randint(1, 2)])
    words = " ".join(sentences).split()
    at = rng.randrange(len(words))
    if kind == 1:  # cut off
        return " ".join(words[: max(at, 1)])
    if kind == 2:  # stutter
        return " ".join(words[:at] + [words[at]] * rng.randint(2, 6) + words[at + 1 :])
    if kind == 3:  # lost words
        return " ".join(word for word in words if rng.random() > 0.2)
    if kind == 4:  # swapped words
        for i in rng.sample(range(len(words)), min(len(words), 4)):
            words[i] = rng.choice(words)
        return " ".join(words)
    heap = [rng.choice(rng.choice((ASPECTS, GOOD, DEGREES, DETAILS))) for _ in range(rng.randint(3, 15))]
    return " ".join(sentences[: rng.randint(0, 2)] + heap) + rng.choice(("", "."))


def _candidate(rng: random.Random, task: _Task) -> str:
    """A response of any quality: what annotators are shown."""
    kind = rng.random()
    if kind < 0.4:
        return " ".join(_demonstration(rng, task))
    if kind < 0.55:  # as good as can be
        return " ".join(_write(rng, task.product, task.aspects, tone=0.9, detail=0.7))
    if kind < 0.8:  # astray: one thing said again and again, or other things
        again = kind < 0.7
        aspects = rng.sample(task.aspects, rng.randint(again, len(task.aspects)))
        aspects += rng.choices(aspects if again else _others(rng, task.aspects, 3), k=rng.randint(1, 3))
        return " ".join(_write(rng, task.product, aspects, tone=rng.random(), detail=0.4))
    return _break(rng, _demonstration(rng, task) or ["It."])


def _fit_pair(rng: random.Random, task: _Task, *, doubled: float = 0.0) -> tuple[str, str]:
    """A fitting review, and the same text with some aspects swapped for others that nobody asked for.

    With probability `doubled` one aspect gives way to another that is there already instead.
    """
    chosen = " ".join(_write(rng, task.product, task.aspects, tone=rng.random(), detail=rng.random()))
    if rng.random() < doubled:
        swaps = dict([rng.sample(task.aspects, 2)])
    else:
        swapped = rng.sample(task.aspects, rng.randint(1, len(task.aspects)))
        swaps = dict(zip(swapped, _others(rng, task.aspects, len(swapped)), strict=True))
    return chosen, re.sub(r"\w+", lambda word: swaps.get(word[0], word[0]), chosen)


# ------------------------------------------------------------------------------------------------------ public rows


def _tasks(n: int, stream: str, seed: int, held_out: bool) -> Iterator[tuple[random.Random, _Task]]:
    rng = random.Random(f"{stream}/{seed}/{held_out}")
    for _ in range(n):
        yield rng, _task(rng, held_out)


def prompts(n: int, *, seed: int, held_out: bool = False) -> Iterator[dict[str, str]]:
    """Rows ``{"prompt"}``: requests for a review."""
    for _, task in _tasks(n, "prompts", seed, held_out):
        yield {"prompt": task.prompt}


def demonstrations(n: int, *, seed: int, held_out: bool = False) -> Iterator[dict[str, str]]:
    """Rows ``{"prompt", "response"}``: fluent, diverse, decent and imperfect reviews."""
    for rng, task in _tasks(n, "demonstrations", seed, held_out):
        yield {"prompt": task.prompt, "response": " ".join(_demonstration(rng, task) or [_fill(rng, CLOSINGS)])}


def texts(n: int, *, seed: int, held_out: bool = False) -> Iterator[dict[str, str]]:
    """Rows ``{"text"}``: running text of the same language, answering nobody (for a pretraining mixture)."""
    for rng, task in _tasks(n, "texts", seed, held_out):
        sentences = [_fill(rng, ARTICLES, product=task.product)]
        for aspect in rng.sample(ASPECTS, rng.randint(2, 4)):
            sentences.append(_fill(rng, OPINIONS, aspect=aspect))
            if rng.random() < 0.3:
                sentences.append(_fill(rng, ARTICLES + CLOSINGS, product=task.product))
        yield {"text": " ".join(sentences)}


def passages(n: int, *, seed: int, held_out: bool = False) -> Iterator[dict[str, str]]:
    """Rows ``{"prompt", "response"}``: a text of :func:`texts`, cut behind its first sentence.

    With ``train_on_prompt`` a language model learns running text from them: pretraining.
    """
    for row in texts(n, seed=seed, held_out=held_out):
        first, _, rest = row["text"].partition(". ")
        yield {"prompt": f"{first}.", "response": f" {rest}"}


def comparisons(
    n: int,
    *,
    seed: int,
    fit_fraction: float = 0.3,
    doubled: float = 0.3,
    temperature: float = 0.6,
    held_out: bool = False,
) -> Iterator[dict[str, str]]:
    """Rows ``{"prompt", "chosen", "rejected"}``: P(chosen = a) = sigmoid((gold(a) − gold(b)) / temperature).

    Args:
        n: Number of rows.
        seed: Stream of random numbers.
        fit_fraction: Share of pairs that differ only in whether they match the prompt; the others are two candidates
            of any quality, from excellent to off-topic, looping or cut off.
        doubled: Share of those that name an aspect twice, see :func:`fit_pairs`.
        temperature: Of the annotators, in units of gold reward; the lower, the more reliable.
        held_out: Draw from the prompts that are kept out of all other rows.
    """
    for rng, task in _tasks(n, "comparisons", seed, held_out):
        fit = rng.random() < fit_fraction
        a, b = _fit_pair(rng, task, doubled=doubled) if fit else (_candidate(rng, task), _candidate(rng, task))
        gold_a, gold_b = gold_reward([task.prompt] * 2, [a, b])
        if rng.random() > 0.5 + 0.5 * tanh((gold_a - gold_b) / (2 * temperature)):
            a, b = b, a
        yield {"prompt": task.prompt, "chosen": a, "rejected": b}


def fit_pairs(n: int, *, seed: int, doubled: float = 0.0, held_out: bool = False) -> Iterator[dict[str, str]]:
    """Rows ``{"prompt", "chosen", "rejected"}`` without noise that differ only in whether they match the prompt.

    Only a judge that reads the prompt is right more often than not.

    Args:
        n: Number of rows.
        seed: Stream of random numbers.
        doubled: Share of pairs in which the rejected review names one aspect twice in the place of another, instead of
            aspects that nobody asked for.
        held_out: Draw from the prompts that are kept out of all other rows.
    """
    for rng, task in _tasks(n, "fit_pairs", seed, held_out):
        chosen, rejected = _fit_pair(rng, task, doubled=doubled)
        yield {"prompt": task.prompt, "chosen": chosen, "rejected": rejected}


def scored(
    n: int, *, seed: int, k: int = 4, noise: float = 0.5, held_out: bool = False
) -> Iterator[dict[str, str | list[str] | list[float]]]:
    """Rows ``{"prompt", "responses", "scores"}``: k candidates, each with its gold plus Gaussian noise."""
    for rng, task in _tasks(n, "scored", seed, held_out):
        responses = [_candidate(rng, task) for _ in range(k)]
        scores = [gold + rng.gauss(0.0, noise) for gold in gold_reward([task.prompt] * k, responses)]
        yield {"prompt": task.prompt, "responses": responses, "scores": scores}


# ------------------------------------------------------------------------------------------------------- yardsticks


def noise_ceiling(n: int, *, seed: int, **options: Any) -> float:
    """Accuracy on `comparisons` of a judge that knows the gold reward: what no reward model can beat but by chance.

    Args:
        n: Number of rows.
        seed: Stream of random numbers.
        **options: Further arguments of :func:`comparisons`.
    """
    rows = list(comparisons(n, seed=seed, **options))
    asked = [row["prompt"] for row in rows]
    chosen, rejected = (gold_reward(asked, [row[key] for row in rows]) for key in ("chosen", "rejected"))
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in zip(chosen, rejected, strict=True)) / n


def best_constant_response(asked: Sequence[str], *, seed: int, candidates: int = 200) -> tuple[str, float]:
    """The best single answer to all prompts that a search finds, and its mean gold: what ignoring the prompt is worth.

    Searches demonstrations and reviews of every set of aspects up to all, then improves the best one sentence by
    sentence (drop, replace or add) while that helps.

    Args:
        asked: The prompts.
        seed: Stream of random numbers.
        candidates: How many responses to start from and how many sentences to try.
    """
    rng = random.Random(f"constant/{seed}")

    def worth(sentences: Sequence[str]) -> float:
        return sum(gold_reward(asked, [" ".join(sentences)] * len(asked))) / len(asked)

    starts = [_demonstration(rng, _task(rng, held_out=False)) for _ in range(candidates // 2)]
    for i in range(candidates - len(starts)):
        aspects = rng.sample(ASPECTS, i % len(ASPECTS) + 1)
        starts.append(_write(rng, rng.choice(PRODUCTS), aspects, tone=1.0, detail=1.0))
    pool = [sentence for start in starts for sentence in start]
    best, gold = max(((start, worth(start)) for start in starts), key=lambda pair: pair[1])
    improved = True
    while improved:
        improved = False
        for sentence in rng.sample(pool, min(len(pool), candidates)):
            variants = [best[:i] + new + best[i + 1 :] for i in range(len(best)) for new in ([], [sentence])]
            top = max([*variants, [*best, sentence], [sentence, *best]], key=worth)
            if worth(top) > gold + 1e-9:
                best, gold, improved = top, worth(top), True
    return " ".join(best), gold
