"""How far a study is, and what a plan says."""

import json

from small_study import invoke


def test_the_plan_knows_what_is_done(workplace, finished):
    result = invoke("plan", workplace / "study.yaml", "--store", finished, "--json")
    document = json.loads(result.stdout)
    assert all(stage["done"] for stage in document["stages"])
    assert len(document["cells"]) == 2


def test_the_plan_of_a_new_study_has_nothing_done(workplace, tmp_path):
    result = invoke("plan", workplace / "study.yaml", "--store", tmp_path / "runs")
    assert result.exit_code == 0
    assert "of which 0 done" in result.stdout
    assert not (tmp_path / "runs").exists()


def test_status_counts_stages(workplace, finished):
    text = invoke("status", workplace / "study.yaml", "--store", finished).stdout
    document = json.loads(
        invoke("status", workplace / "study.yaml", "--store", finished, "--json").stdout
    )
    assert document["complete"]
    total = len(document["stages"])
    assert f"{total} of {total} stages done" in text


def test_watching_ends_when_all_is_done(workplace, finished):
    result = invoke("status", workplace / "study.yaml", "--store", finished, "--watch")
    assert result.exit_code == 0
    assert "stages done" in result.stdout


def test_watching_and_json_exclude_each_other(workplace, finished):
    result = invoke("status", workplace / "study.yaml", "--store", finished, "--watch", "--json")
    assert result.exit_code == 2
    assert "--watch" in result.stderr
