"""What a bag of words makes of rated texts: the reward accuracy that a model of sequences has to beat.

    python benchmarks/bag_of_words.py --train reviews.train.jsonl --test reviews.test.jsonl

Ridge regression of the rating on the tf-idf of words and word pairs, judged as a reward model is: by the share of test
pairs, rated at least ``--min-gap`` apart, in which the better text gets the higher score. Beside it the accuracy of
VADER's lexicon, the independent judge of ``experiments/reviews.yaml``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from rlhf.data.rated import RatedTexts, pair_up
from rlhf.data.sources import Files
from rlhf.models.judges import vader


def read(path: str, text: str, rating: str) -> tuple[list[str], np.ndarray]:
    """Texts and their ratings."""
    table = Files(path=path).load()
    return table[text][:], np.array(table[rating][:], dtype=np.float64)


def accuracy(scores: Sequence[float] | np.ndarray, pairs: Sequence[tuple[int, int]]) -> float:
    """Share of (better, worse) pairs in which the better one has the higher score; equal scores are not correct."""
    values = np.asarray(scores)
    better, worse = np.array(pairs).T
    return float((values[better] > values[worse]).mean())


def ridge(texts: Sequence[str], ratings: np.ndarray, tests: Sequence[str], strength: float) -> np.ndarray:
    """Ratings that a ridge regression predicts for the test texts."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import Ridge
    except ImportError:
        raise SystemExit("scikit-learn is not installed; pip install 'rlhf[demo]'") from None
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return Ridge(alpha=strength).fit(words.fit_transform(texts), ratings).predict(words.transform(tests))


def main() -> None:
    """Prints both accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="rated texts to learn from")
    parser.add_argument("--test", required=True, help="rated texts to be judged on")
    parser.add_argument("--text", default=RatedTexts.text, help="column of the text")
    parser.add_argument("--rating", default=RatedTexts.rating, help="column of the rating")
    parser.add_argument("--min-gap", type=float, default=1.0, help="least gap of the ratings of a test pair")
    parser.add_argument("--pairs", type=int, default=2000, help="test pairs")
    parser.add_argument("--strength", type=float, default=1.0, help="of the ridge penalty")
    options = parser.parse_args()
    texts, ratings = read(options.train, options.text, options.rating)
    tests, truth = read(options.test, options.text, options.rating)
    pairs = pair_up(truth.tolist(), options.pairs, min_gap=options.min_gap, seed=RatedTexts.seed)
    print(f"{len(texts)} training texts, {len(pairs)} test pairs with a gap of at least {options.min_gap}")
    print(f"bag of words  {accuracy(ridge(texts, ratings, tests, options.strength), pairs):.3f}")
    print(f"VADER         {accuracy(vader(prompts=[''] * len(tests), responses=tests), pairs):.3f}")


if __name__ == "__main__":
    main()
