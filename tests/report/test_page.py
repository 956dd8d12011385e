"""The page: what stands on it, and that it is safe to open without a network."""

import json
import re
from html.parser import HTMLParser

import browsers
import pytest
import tiny_runs
from run_folders import NASTY, config, curve, evaluation, sampled, simple, stage

from rlhf.algorithms.ppo import Evaluation
from rlhf.errors import UserError
from rlhf.experiment import Experiment
from rlhf.report import frame
from rlhf.report.frame import MissingPackage
from rlhf.report.page import duration, write_report
from rlhf.report.runs import read_run


class Page(HTMLParser):
    """What a browser would make of a page: its elements, its text outside of scripts, and what it would fetch."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.fetched, self.text, self.scripts = [], [], "", {}
        self.inside = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.inside = tag if tag in ("script", "style") else None
        names = ("src", "srcset", "data", "poster", "action", "background") + (("href",) if tag == "link" else ())
        self.fetched += [found[name] for name in names if found.get(name)]
        if tag == "script":
            self.key = found.get("id", "code")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[self.key] = data
        elif self.inside is None:
            self.text += data


def test_a_figure_of_one_evaluation_does_not_come_from_itself(tmp_path):
    folder = config(tmp_path / "once", {"sft": {"class_path": "rlhf.SFT", "init_args": {"steps": 1}}})
    stage(folder / "sft", [{"step": 1, "loss": 3.25, "eval/perplexity": 7.5}])
    once = Page(write_report([folder]).read_text()).text
    assert "7.5" in once and "from 7.5" not in once
    stage(folder / "sft", [{"step": 1, "eval/perplexity": 9.5}, {"step": 2, "eval/perplexity": 7.5}])
    assert "from 9.5" in Page(write_report([folder]).read_text()).text


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """The report of a run in which a response and a setting are a script."""
    folder = simple(tmp_path_factory.mktemp("runs") / "toy", response=NASTY + "</script></p>", done=False)
    path = folder / "config.yaml"
    path.write_text(path.read_text() + f"mine: '{NASTY}'\n")
    return write_report([folder])


@pytest.fixture(scope="module")
def page(nasty):
    return Page(nasty.read_text())


def test_what_a_model_and_a_config_say_is_text_and_nothing_else(page):
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert [one.get("id") for one in scripts] == ["data", "plotly", None] and "nonce" in scripts[2]
    assert page.text.count(NASTY) >= 4  # the answer, its tokens, the setting and config.yaml
    assert "alert" not in page.scripts["code"]


def test_nothing_is_fetched(page, nasty):
    assert page.fetched == ["data:,"]
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy and "script-src 'nonce-" in policy
    style = re.search(r"<style>(.*?)</style>", nasty.read_text(), re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style


def test_every_part_is_there(page):
    for words in (
        "Report of a run",
        "The stage is not finished",
        "@sft as policy",
        "1 min 15 s",
        "KL from the reference",
        "mine/own",  # a figure that the report does not know
        "Answers to the same held-out prompts",
        "iteration 2 · score 2 · gold −2 · 33% repeated words",
        "iteration 1 · score 2 · 1 after normalisation and penalties",
        "Tokens of sampled rollouts",
        "long_prompt 1",
        "a remark",
        "Settings that are not at their defaults",
        "stages.ppo.optimizer.lr",
        "Every setting: config.yaml",
    ):
        assert words in page.text, words
    data = json.loads(page.scripts["data"])
    drawn = {a["data-chart"] for _, a in page.tags if "data-chart" in a}
    assert drawn == set(data["charts"]) and len(drawn) == 4
    assert data["tokens"]["toy/ppo"]["rollouts"][0]["advantage"] == [0.5, 0.5]


def test_what_a_run_that_pays_for_repetition_shows(tmp_path):
    folder = simple(tmp_path / "toy")
    for iteration, most in ((0, 1), (2, 8)):
        answers = ["it is fine " + "wow " * (most * row // 8) for row in range(9)]
        rows = [("why?", text, text.count("wow")) for text in answers]
        evaluation(folder / "ppo", iteration, rows, **{"score/wows": 7.0})
    html = write_report([folder]).read_text()
    found = Page(html)
    assert "What the score goes with" in found.text and "“wow” among the words" in found.text
    assert "The score pays for" in found.text and "to look at" in found.text
    assert "score 8 (of wows 7)" in found.text and '<mark class="paid">wow</mark>' in html
    links = [a["href"] for tag, a in found.tags if tag == "a"]
    assert {"#paid-2", "#answers-2"} <= set(links)
    assert found.text.index("What the score goes with") < found.text.index("Answers to the same held-out prompts")

    (told,) = [a for tag, a in found.tags if tag == "a" and a.get("class") == "state grave"]
    boxes = [a for tag, a in found.tags if tag == "li" and a.get("class") in ("grave", "mild")]
    assert told["href"] == "#look" and f"{len(boxes)} to look at" in found.text


def test_the_tokens_of_what_is_paid_are_underlined(tmp_path):
    folder = simple(tmp_path / "toy")
    for iteration, most in ((0, 1), (2, 8)):
        answers = ["it is fine " + "wow " * (most * row // 8) for row in range(9)]
        evaluation(folder / "ppo", iteration, [("why?", text, text.count("wow")) for text in answers])
    sampled(folder / "ppo", 2, texts=["so", " wo", "w", " it"])
    html = write_report([folder]).read_text()
    assert re.findall(r'class="token paid" data-token="(\d)">([^<]*)<', html) == [("1", " wo"), ("2", "w")]
    assert "Underlined is “wow”, which the score pays for." in html


@pytest.mark.parametrize(("error", "said"), [
    ("reward of response 3 is nan; mend it", "The stage ended by an error"), ("", "asked to stop"), (None, "or killed"),
])  # fmt: skip
def test_how_a_stage_ended(tmp_path, error, said):
    folder = simple(tmp_path / "toy", done=False)
    if error is not None:
        (folder / "ppo" / "stopped.json").write_text(json.dumps({"error": error}))
    found = Page(write_report([folder]).read_text())
    assert said in found.text and (not error or error in found.text)


def test_a_page_is_not_written_over_something_else(tmp_path):
    folder = simple(tmp_path / "toy")
    with pytest.raises(UserError, match=r"--output: .*toy is a folder; name the page to write, such as .*toy\.html"):
        write_report([folder], folder)
    with pytest.raises(UserError, match=r"--output: .*config\.yaml does not end in \.html"):
        write_report([folder], folder / "config.yaml")
    assert read_run(folder).name == "toy"


@pytest.mark.parametrize(("lines", "settings", "said"), [
    (["sources.toy: 2 duplicates; kept", "  0.90 alike: 'a' | 'b'"], {}, "2 duplicates; kept"),
    ([], {}, "Duplicates were not looked for"),
    ([], {"duplicates": "report"}, "Duplicates were looked for, and there are none."),
    ([], {"near_duplicates": 0.8}, "Duplicates were looked for, and there are none."),
])  # fmt: skip
def test_duplicates_stand_beside_the_drops(tmp_path, lines, settings, said):
    counts = {"train": 9, "heldout": 2, "dropped": {}, "notes": {}, "remark": ""}
    for part, inside in (("data", {"data": settings}), ("mixture", {"mixture": {"init_args": {"data": settings}}})):
        config(tmp_path, {"sft": {"class_path": "rlhf.SFT", "init_args": inside}})
        stage(tmp_path / "sft", [], data={part: {"toy": counts}, "findings": {part: lines}})
        assert said in Page(write_report([tmp_path]).read_text()).text


def test_figures_that_do_not_move_are_told_in_words(tmp_path):
    config(tmp_path, {"sft": {"class_path": "rlhf.SFT", "init_args": {}}})
    stage(tmp_path / "sft", [{"step": n, "loss": n, "kl/coef": 0.05} for n in (1, 2)])
    found = Page(write_report([tmp_path]).read_text())
    assert "Did not move, or came once: kl/coef 0.05" in found.text
    assert [chart["title"] for chart in json.loads(found.scripts["data"])["charts"].values()] == ["Loss"]


def test_what_was_gained_for_how_much_kl_is_drawn(tmp_path):
    config(tmp_path, {"ppo": {"class_path": "rlhf.PPO", "init_args": {}}})
    rows = [
        {"step": n, "iteration": n, "eval/score": n, "eval/gold_score": 1.0, "eval/kl": n * n, "kl/sequence": n}
        for n in (0, 1, 2)
    ]
    stage(tmp_path / "ppo", rows)
    found = Page(write_report([tmp_path]).read_text())
    charts = json.loads(found.scripts["data"])["charts"]
    drawn = {chart["title"]: chart for chart in charts.values()}
    assert drawn["KL–reward frontier"]["across"] == "√ of the KL from the reference"
    (line,) = drawn["KL–reward frontier"]["traces"]
    assert (line["x"], line["y"], line["steps"]) == ([0, 1, 2], [0, 1, 2], [0, 1, 2])
    assert drawn["Score on held-out prompts"]["across"] is None
    assert "Reward against distance" in found.text and "√" not in found.text  # the axis is the script's to write
    # a judge that does not move is told once, and has no frontier
    assert found.text.count("eval/gold_score") == 1 and "by the judge “gold”" not in str(drawn)
    assert found.text.index("KL from the reference") < found.text.index("KL–reward frontier")


def test_links_lead_to_what_is_there(page):
    ids = {a["id"] for _, a in page.tags if "id" in a}
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert links and all(link.startswith("#") and link[1:] in ids for link in links)
    assert len(ids) == len([1 for _, a in page.tags if "id" in a])


def test_a_run_with_supervised_fine_tuning_only(tmp_path):
    experiment = Experiment(
        name="sft-only", output_dir=str(tmp_path), stages={"sft": tiny_runs.sft(steps=2, eval_every=1)}
    )
    experiment.run()
    found = Page(write_report([experiment.directory]).read_text())
    assert "Perplexity, held out" in found.text and "Tokens of sampled rollouts" not in found.text
    assert "Nothing that the rules look for" in found.text


def test_a_real_run_has_tokens_with_their_figures(tmp_path):
    ppo = tiny_runs.ppo(iterations=2, evaluation=Evaluation(every=1, prompts=4), save_rollouts=2)
    experiment = Experiment(name="ppo-only", output_dir=str(tmp_path), stages={"ppo": ppo})
    experiment.run()
    found = Page(write_report([experiment.directory]).read_text())
    tokens = json.loads(found.scripts["data"])["tokens"]["ppo-only/ppo"]
    layers = ["advantage", "change", "kl", "reward", "value", "logprob", "gap"]
    assert [layer["key"] for layer in tokens["layers"]] == layers
    shown = [a for tag, a in found.tags if tag == "span" and a.get("class") == "token"]
    assert len(shown) == sum(len(rollout["advantage"]) for rollout in tokens["rollouts"]) > 0


def test_a_run_that_has_not_begun(tmp_path):
    config(tmp_path / "new", {"sft": {"class_path": "rlhf.SFT", "init_args": {}}})
    assert "not started" in Page(write_report([tmp_path / "new"]).read_text()).text


def test_several_runs_share_a_page_above_them(tmp_path):
    folders = [simple(tmp_path / "one", lr=1e-3), simple(tmp_path / "other", lr=2e-3)]
    path = write_report(folders)
    assert path.resolve() == tmp_path / "report.html"
    found = Page(path.read_text())
    assert "Runs side by side" in found.text and "In which the runs differ" in found.text
    assert "stages.ppo.optimizer.lr" in found.text and "0.002" in found.text
    charts = json.loads(found.scripts["data"])["charts"].values()
    (score,) = [chart for chart in charts if chart["title"] == "Score on held-out prompts"]
    assert [(line["name"], line["colour"]) for line in score["traces"]] == [("one", 0), ("other", 1)]
    # Overlaid curves, but one article per run and prompt.
    assert set(json.loads(found.scripts["data"])["tokens"]) == {"one/ppo", "other/ppo"}


def test_a_stage_that_only_one_run_has(tmp_path):
    one, other = simple(tmp_path / "one"), config(tmp_path / "other", {"extra": {"class_path": "x.Y", "init_args": {}}})
    stage(other / "extra", curve("loss", 2.0, 1.0))
    found = Page(write_report([one, other], tmp_path / "deep" / "page.html").read_text())
    assert [line["colour"] for c in json.loads(found.scripts["data"])["charts"].values() for line in c["traces"]][
        -1
    ] == 1


def test_figures_that_are_no_numbers_leave_valid_json(tmp_path):
    folder = simple(tmp_path / "toy")
    rows = (folder / "ppo" / "rollouts" / "iteration_000001.jsonl").read_text()
    (folder / "ppo" / "rollouts" / "iteration_000001.jsonl").write_text(
        rows.replace("0.5", "NaN").replace("1.0", "Infinity")
    )
    text = Page(write_report([folder]).read_text()).scripts["data"]
    json.loads(text, parse_constant=lambda word: pytest.fail(word))


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    find = frame.find_spec
    monkeypatch.setattr(frame, "find_spec", lambda name: None if name == "plotly" else find(name))
    with pytest.raises(MissingPackage, match=r"the package plotly is missing; pip install 'rlhf\[report\]'"):
        write_report([simple(tmp_path / "toy")])


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.26, "1.3 s"), (59.7, "1 min 0 s"), (75, "1 min 15 s"), (7260, "2 h 1 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@browsers.needs_chromium
def test_a_browser_draws_it_without_a_request_or_a_complaint(nasty, tmp_path):
    elements, complaints, asked = browsers.browse(nasty, tmp_path)
    assert (complaints, asked) == ([], set())
    assert "data-ready" in elements and elements.count('class="main-svg"') >= 4
    assert re.search(r'class="token"[^>]*style="background: rgba\(var\(--up\)', elements)
    assert "<script>alert(1)" not in elements


@browsers.needs_chromium
def test_the_browser_would_have_noticed(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<img src='http://outside.invalid/a.png'><script>gone()</script>")
    _, complaints, asked = browsers.browse(page, tmp_path)
    assert asked == {"http://outside.invalid/a.png"} and any("gone is not defined" in line for line in complaints)
