"""Reports, figures, comparisons and advice of a finished study."""

import json
import shutil

import pytest
from small_study import invoke, write_study


def test_the_report_goes_into_the_store_by_default(workplace, finished):
    result = invoke("report", workplace / "study.yaml", "--store", finished)
    assert result.exit_code == 0, result.stderr
    path = finished / "reports" / "tiny.html"
    assert f"report: {path}" in result.stdout
    assert "<html" in path.read_text()


@pytest.mark.parametrize(
    ("out", "written"), [("page.html", "page.html"), ("pages", "pages/tiny.html")]
)
def test_the_report_goes_where_it_is_told(finished, tmp_path, out, written):
    result = invoke("report", finished, "-o", tmp_path / out)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / written).is_file()


def test_a_report_that_cannot_be_written_is_refused(finished, tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("report", finished, "-o", tmp_path / "file" / "page.html")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_a_store_without_its_study_says_so(finished, tmp_path):
    store = shutil.copytree(finished, tmp_path / "runs")
    shutil.rmtree(store / "studies")
    result = invoke("report", store)
    assert result.exit_code == 2
    assert "no copy of a study" in result.stderr


def test_a_store_of_several_studies_asks_which(finished, tmp_path):
    store = shutil.copytree(finished, tmp_path / "runs")
    text = (store / "studies" / "tiny.json").read_text().replace('"tiny"', '"other"')
    (store / "studies" / "other.json").write_text(text)
    result = invoke("report", store)
    assert result.exit_code == 2
    assert "other, tiny" in result.stderr


def test_missing_cells_are_listed_with_the_option_that_does_without(workplace, finished):
    arguments = ("report", workplace / "study.yaml", "--store", finished, "--set", "seeds=[1, 2]")
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "kl=reverse seed=2" in result.stderr
    assert "--allow-missing" in result.stderr


def test_what_is_finished_is_reported_on_request(workplace, finished, tmp_path):
    arguments = ("report", workplace / "study.yaml", "--store", finished, "--set", "seeds=[1, 2]")
    result = invoke(*arguments, "--allow-missing", "-o", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "tiny.html").is_file()


def test_a_study_without_results_says_so(place):
    result = invoke("report", write_study(place), "--store", place / "runs")
    assert result.exit_code == 2
    assert "no cell" in result.stderr


def test_two_cells_are_compared_by_item(workplace, finished):
    names = ("kl=forward seed=1", "kl=reverse seed=1")
    arguments = ("compare", workplace / "study.yaml", *names, "--store", finished)
    result = invoke(*arguments, "--metric", "accuracy", "--json")
    document = json.loads(result.stdout)
    assert document["differing"] == {"method.divergence": ["forward", "reverse"]}
    assert [one["metric"] for one in document["metrics"]] == ["accuracy"]
    assert document["metrics"][0]["items"] == 8
    text = invoke(*arguments).stdout
    assert "method.divergence: forward against reverse" in text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("kl=forward seed=1", "kl=sideways"), "Cells: 'kl=forward seed=1'"),
        (("kl=forward seed=1", "kl=reverse seed=1", "--metric", "charm"), "--metric charm"),
    ],
)
def test_what_cannot_be_compared_is_named(workplace, finished, arguments, word):
    result = invoke("compare", workplace / "study.yaml", *arguments, "--store", finished)
    assert result.exit_code == 2
    assert word in result.stderr


def test_advice_is_given_in_sentences(workplace, finished):
    result = invoke("advise", workplace / "study.yaml", "--store", finished)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("- ")
    document = json.loads(invoke("advise", finished, "--json").stdout)
    assert [f"- {line}" for line in document["lines"]] == result.stdout.strip().splitlines()


def test_figures_are_drawn_into_a_folder(finished, tmp_path):
    result = invoke("figures", finished, "-o", tmp_path / "figures", "--format", "svg")
    assert result.exit_code == 0, result.stderr
    assert list((tmp_path / "figures").glob("*.svg"))


def test_an_unknown_format_is_refused(finished, tmp_path):
    result = invoke("figures", finished, "-o", tmp_path, "--format", "gif")
    assert result.exit_code == 2
    assert "pdf, svg, png" in result.stderr


def test_records_leave_the_store_without_weights_and_make_the_same_report(
    workplace, finished, tmp_path
):
    records = tmp_path / "records" / "tiny"
    arguments = ("export", workplace / "study.yaml", records, "--store", finished)
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert not list(records.rglob("*.safetensors"))
    assert invoke(*arguments).exit_code == 0  # an export takes the place of an earlier one
    for name, source in (("store", finished), ("records", records), ("above", records.parent)):
        result = invoke("report", source, "-o", tmp_path / f"{name}.html")
        assert result.exit_code == 0, result.stderr
    pages = [(tmp_path / f"{n}.html").read_text() for n in ("store", "records", "above")]
    assert pages[0] == pages[1] == pages[2]


def test_an_export_does_not_overwrite_something_else(workplace, finished, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = invoke("export", workplace / "study.yaml", tmp_path, "--store", finished)
    assert result.exit_code == 2
    assert "no earlier export" in result.stderr


def test_one_page_of_several_studies(workplace, finished, tmp_path):
    result = invoke("export", workplace / "study.yaml", tmp_path / "a", "--store", finished)
    assert result.exit_code == 0, result.stderr
    head = tmp_path / "a" / "study.json"
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other = head.read_text().replace('"name": "tiny"', '"name": "other"')
    (tmp_path / "b" / "study.json").write_text(other)
    both = (tmp_path / "a", tmp_path / "b")
    result = invoke("report", *both, "--markdown", tmp_path / "results.md")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "results.md").read_text()
    assert "## tiny" in page
    assert "## other" in page
    result = invoke("report", *both, "-o", tmp_path / "pages")
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in (tmp_path / "pages").iterdir()} == {"tiny.html", "other.html"}
    result = invoke("report", *both, "-o", tmp_path / "one.html")
    assert result.exit_code == 2
    assert "Name a folder" in result.stderr


def test_a_study_from_two_sources_is_refused(workplace, finished):
    result = invoke("report", workplace / "study.yaml", finished, "--store", finished)
    assert result.exit_code == 2
    assert "two sources" in result.stderr


def test_figures_that_are_not_drawn_say_why(finished, tmp_path):
    result = invoke("figures", finished, "-o", tmp_path, "--format", "svg")
    assert result.exit_code == 0, result.stderr
    assert "not drawn: fig06" in result.stderr
    assert "E9" in result.stderr
