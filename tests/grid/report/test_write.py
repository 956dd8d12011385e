"""What is written of a grid: tables, figures, the page; the same bytes for the same cells."""

import json
import re
import shutil
from io import StringIO
from pathlib import Path
from urllib.parse import unquote

import browsers
import finished
import pytest

from rlhf.errors import UserError
from rlhf.grid.report import write
from rlhf.grid.report.write import write_report
from rlhf.grid.settings import Metric
from rlhf.report.frame import MissingPackage

NASTY = "<script>alert(1)</script>"


@pytest.fixture
def undrawn(monkeypatch):
    """Figures as files take seconds, and most tests do not look at them."""
    monkeypatch.setattr(write, "draw", lambda drawings, folder: [])


def report(grid, cells, errors=None, without=()):
    done = [cell.name for cell in cells if cell.name not in without]
    return write_report(grid, cells, done, errors or {})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A grid with its report: the grid, the page, and what was said."""
    grid, cells = finished.whole(tmp_path_factory.mktemp("written"))
    return grid, *report(grid, cells)


def read_csv(path):
    import pandas as pd

    return pd.read_csv(StringIO(path.read_text()))


def timeless(folder):
    """The files of a report but for those that tell the time."""
    paths = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (".csv", ".tex", ".png", ".pdf")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if "cost_" not in path.name}


def test_tables_figures_and_the_page_are_written(written):
    grid, page, told = written
    home = grid.directory
    assert page == home / "report.html" and told[1].startswith("clip=off − clip=on = 0.55 [")
    assert read_csv(home / "results.csv")["gold"].tolist() == [1.0, 2.0, 3.0, 1.5, 2.25, 3.9]
    assert read_csv(home / "tables/differences.csv")["difference"].tolist() == pytest.approx([0.55])
    assert read_csv(home / "tables/cost_stages.csv")["made"].tolist() == [3, 6]
    for name in ("differences_gold", "eval_gold_score", "frontier_eval_gold_score", "profile_gold"):
        assert (home / f"figures/{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (home / f"figures/{name}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_the_same_cells_give_the_same_bytes(tmp_path):
    grid, cells = finished.whole(tmp_path)
    report(grid, cells)
    first = timeless(grid.directory)
    for name in ("tables", "figures"):
        shutil.rmtree(grid.directory / name)
    report(grid, cells)
    assert timeless(grid.directory) == first and len(first) > 12


@pytest.mark.slow
def test_nothing_stays_of_former_metrics(tmp_path):
    grid, cells = finished.whole(tmp_path, metrics={"old": Metric(name="reward/nothing")})
    report(grid, cells)
    tables = grid.directory / "tables"
    assert (tables / "remarks.csv").exists() and (grid.directory / "figures/differences_old.png").exists()
    grid, cells = finished.whole(tmp_path)
    report(grid, cells)
    assert not (tables / "remarks.csv").exists() and not (grid.directory / "figures/differences_old.png").exists()


def test_latex_can_be_set(tmp_path, undrawn):
    axes = {"clip": {"a_b": {"stages.ppo.score_clip": 1.0}, "50%": {"stages.ppo.score_clip": None}}}
    gold = {"clip=a_b": finished.GOLD["clip=on"], "clip=50%": finished.GOLD["clip=off"]}
    grid, cells = finished.whole(tmp_path, gold, axes=axes, metrics={"gold_a": Metric(name="eval/gold_score")})
    report(grid, cells)
    means = (grid.directory / "tables/means.tex").read_text()
    assert r"    variant & gold\_a \\" in means and r"    clip=a\_b & 2.0 [$-$0.5, 4.5] \\" in means
    assert r"clip=50\% & 0.55 [$-$0.26, 1.36] (0.1)" in (grid.directory / "tables/differences.tex").read_text()
    for path in (grid.directory / "tables").glob("*.tex"):
        assert not re.search(r"(?<!\\)[_%#]", path.read_text())


def test_why_a_number_is_missing_is_written(tmp_path, undrawn):
    grid, cells = finished.whole(tmp_path)
    finished.finish(cells[0], {"eval/gold_score": 0.0}, {"eval/gold_score": None})
    report(grid, cells, {"clip=off,seed=2": "Error: no memory"}, without=["clip=off,seed=2"])
    remarks = read_csv(grid.directory / "tables/remarks.csv").set_index("cell")["remark"]
    assert remarks["clip=off,seed=2"] == "not finished" and "not a number at iteration 1" in remarks["clip=on,seed=1"]
    page = (grid.directory / "report.html").read_text()
    assert "clip=off,seed=2 failed:<pre>Error: no memory</pre>" in page and "2 of 6 cells have no gold" in page


def test_the_page_has_what_a_reader_looks_for(written):
    grid, path, _ = written
    page = path.read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.partition('<script type="application/json"')[0]))
    assert "2 variants × 3 seeds (1, 2, 3) · 6 of 6 cells finished" in text
    assert "eval/gold_score, at the last evaluation; more is better." in text
    assert "stages.ppo.score_clip 1.0 null" in text
    assert "clip=off good" in text and "before training, of all" in text
    assert "sft 3 6 3 min 45 s 3 min 45 s" in text
    links = re.findall(r'href="([^"#]+)"', page.partition("</head>")[2])
    assert "clip%3Don%2Cseed%3D1/ppo/metrics.jsonl" in links and "tables/differences.csv" in links
    assert [link for link in links if not (grid.directory / unquote(link)).exists()] == ["grid.yaml"]  # the command's


@pytest.mark.parametrize("gone", ["a value", "a variant", "a metric"])
def test_data_of_the_page_is_json(tmp_path, undrawn, gone):
    metrics = {"gold": Metric(name="eval/gold_score"), "none": Metric(name="reward/nothing")}
    grid, cells = finished.whole(tmp_path, metrics=metrics if gone == "a metric" else {"gold": metrics["gold"]})
    if gone == "a value":
        finished.finish(cells[0], {"eval/gold_score": 0.0}, {"eval/gold_score": None})
    without = [cell.name for cell in cells if gone == "a variant" and cell.variant == "clip=off"]
    page = report(grid, cells, without=without)[0].read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]

    def refuse(name):
        raise AssertionError(name)

    assert "eval_gold_score" in json.loads(data, parse_constant=refuse)["charts"]


def test_one_variant_and_one_seed_make_a_page_too(tmp_path, undrawn):
    grid, cells = finished.whole(tmp_path, {"base": [1.0]}, axes={}, seeds=[1])
    page, told = report(grid, cells)
    assert "The seed alone." in page.read_text() and told == [
        "1 seed: no difference can be told from chance; run at least 3, better 5"
    ]


def test_nothing_is_written_where_nothing_is_finished(tmp_path):
    grid, cells = finished.grid(tmp_path)
    with pytest.raises(UserError, match="no cell is finished"):
        report(grid, cells, without=[cell.name for cell in cells])
    assert not Path(grid.directory).exists()


@pytest.mark.parametrize("package", ["matplotlib", "statsmodels", "plotly"])
def test_a_missing_package_is_named_with_the_remedy(tmp_path, monkeypatch, package):
    grid, cells = finished.whole(tmp_path)
    find = write.importlib.util.find_spec
    monkeypatch.setattr(write.importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(MissingPackage, match=rf"the package {package} is missing; pip install 'rlhf\[grid\]'"):
        report(grid, cells)


@browsers.needs_chromium
def test_a_browser_draws_every_figure_without_a_request_or_a_complaint(tmp_path, undrawn):
    axes = {**finished.AXES, "stages.ppo.epochs": [1, 2]}
    variants = [f"clip={clip},epochs={epochs}" for clip in ("on", "off") for epochs in (1, 2)]
    grid, cells = finished.whole(tmp_path, {name: [1.0, 2.0, 3.5 + at] for at, name in enumerate(variants)}, axes=axes)
    for cell in cells:
        rows = [("p", NASTY, 1.0)]
        finished.run_folders.evaluation(cell.experiment.directory / "ppo", 1, rows)
        finished.run_folders.evaluation(cell.experiment.directory / "ppo", 0, rows)
    page, _ = report(grid, cells)
    opened = page.read_text().replace('<details class="group" >', '<details class="group" open>')
    page.write_text(opened)
    elements, complaints, asked = browsers.browse(page, tmp_path)
    assert (complaints, asked) == ([], set())
    figures = elements.count('data-chart="')
    assert figures >= 4 and elements.count("plot js-plotly-plot") == figures and "data-ready" in elements
    assert NASTY not in elements
