"""`check` and `plan` with data: read where it is on this disk, taken at its word on the hub."""

from pathlib import Path

import pytest
from small_study import invoke, write_study

ROWS = Path(__file__).parents[1] / "data" / "rows"
TABLE = "{{kind: table, path: rows.jsonl, {}, answer: answer, test: 8}}"


@pytest.mark.parametrize("kind", ["science", "medreason", "math", "gsm8k"])
@pytest.mark.parametrize("verb", ["check", "plan"])
def test_data_on_the_hub_need_not_be_there(place, kind, verb):
    path = write_study(place, task=f"{{kind: {kind}}}", lengths="{prompt: 512}")
    result = invoke(verb, path)
    assert result.exit_code == 0, result.stderr


def test_local_data_is_looked_into_and_what_it_leaves_out_is_told(place):
    source = ROWS / "medreason.jsonl"
    task = f"{{kind: medreason, source: {source}, train: null, selection: 0, test: 8}}"
    result = invoke("check", write_study(place, task=task))
    assert result.exit_code == 0, result.stderr
    assert "16 rows, 2 train, 0 selection, 8 test; left out: 1 duplicate" in result.stderr


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "{kind: science, source: gone.jsonl}"}, ["task.source", "gone.jsonl"]),
        (
            {"task": f"{{kind: science, source: {ROWS / 'sciknoweval.jsonl'}, test: 9}}"},
            ["budget.prompts_per_step is 2", "holds 1 problems"],
        ),
        (
            {
                "task": TABLE.format("prompt: question"),
                "vary": "{budget.prompts_per_step: [2, 64]}",
            },
            ["budget.prompts_per_step is 64", "32 problems"],
        ),
        (
            {"task": TABLE.format("template: '{quest}'")},
            ["task.template", "quest", "question"],
        ),
    ],
)
def test_bad_data_names_the_field(place, changes, words):
    result = invoke("check", write_study(place, **changes))
    assert result.exit_code == 2
    for word in words:
        assert word in result.stderr


def test_a_public_task_that_is_out_of_reach_says_so(place, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    result = invoke("evaluate", place / "student", "--task", "gsm8k")
    assert result.exit_code == 2
    assert "openai/gsm8k cannot be loaded" in result.stderr
