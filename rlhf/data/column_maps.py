"""Column maps of data sets and layouts that many people use, by the names that ``columns`` takes.

They say where our columns are, and nothing of what stands in them: where a data set brings its dialogue tags along
(``Human:`` … ``Assistant:``) its template is ``Plain``, and the others get the tags from a ``prompt_format``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMN_MAPS: Mapping[str, Mapping[str, Any]] = {
    # Dahoas/rm-static and Dahoas/full-hh-rlhf: prompts with dialogue tags, a good response, and a pair.
    "rm_static": {"prompt": "prompt", "response": "response", "chosen": "chosen", "rejected": "rejected"},
    "full_hh_rlhf": {"prompt": "prompt", "response": "response", "chosen": "chosen", "rejected": "rejected"},
    # Dahoas/synthetic-instruct-gptj-pairwise
    "synthetic_instruct_gptj_pairwise": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
    # openai/webgpt_comparisons: two scored answers; equal scores make no pair.
    "webgpt_comparisons": {
        "prompt": "question.full_text",
        "responses": ["answer_0", "answer_1"],
        "scores": ["score_0", "score_1"],
    },
    # stanfordnlp/SHP: label 1 says that A is preferred.
    "shp": {
        "prompt": "history",
        "chosen": {"labels": {1: "human_ref_A", 0: "human_ref_B"}},
        "rejected": {"labels": {1: "human_ref_B", 0: "human_ref_A"}},
    },
    # Hello-SimpleAI/HC3: nobody says whether people or ChatGPT answer better, so there are demonstrations only.
    "hc3": {"prompt": "question", "response": "human_answers.0"},
    # tatsu-lab/alpaca and its kin
    "alpaca": {"prompt": "{instruction}\n{input}", "response": "output"},
    # ShareGPT: conversations of {from, value}; and conversations with two ways to go on.
    "sharegpt": {"messages": "conversations"},
    "sharegpt_pairs": {"prompt": "conversations", "chosen": "chosen", "rejected": "rejected"},
}
