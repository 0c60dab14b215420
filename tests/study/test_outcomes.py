"""Records are read from the store as they were written, or not at all."""

import json
from pathlib import Path

import pytest
import yaml

import fractionate
from fractionate.config import StudyFileError
from fractionate.study.store import StoreError
from tiny import save_pair

SMALL = {
    "name": "small",
    "task": {"kind": "table", "prompt": "prompt", "answer": "answer", "selection": 2, "test": 4},
    "optimizer": {"compute_dtype": "float32"},
    "budget": {"steps": 2, "prompts_per_step": 2},
    "lengths": {"prompt": 8, "completion": 4, "evaluation": 4},
    "vary": {"rollout": [{"kind": "student"}, {"kind": "teacher"}]},
    "seeds": [1],
    "evaluate": {"accuracy": {"items": 4}},
}


@pytest.fixture
def results(tmp_path: Path) -> fractionate.Results:
    student, teacher = save_pair(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{i} 5", "answer": "7"}}\n' for i in range(12)))
    study = {
        **SMALL,
        "models": {"student": str(student), "teacher": str(teacher)},
        "task": {**SMALL["task"], "path": str(rows)},
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    return fractionate.run(fractionate.plan(path), store=tmp_path / "runs")


def test_cells_come_with_their_steps_items_weights_and_cost(results: fractionate.Results):
    for cell in results.outcomes.cells:
        assert [step.step for step in cell.steps] == [1, 2]
        assert set(cell.evaluations) == {0, 2}
        assert cell.weights[2].parameters > 0
        assert cell.flops is not None
        assert cell.flops > 0


def test_a_changed_record_is_refused_by_name(results: fractionate.Results):
    name, stages = next(iter(results.plan.cell_stages.items()))
    path = results.store.path(stages.evaluations["last"]) / "items.jsonl"
    record = json.loads(path.read_text().splitlines()[0])
    path.write_text(path.read_text().replace('"correct":0', '"correct":1', 1))
    assert record["suite"] == "accuracy", name
    with pytest.raises(StoreError, match=r"items\.jsonl has changed.*Run the study again"):
        fractionate.Results(results.plan, results.store).frame()


@pytest.mark.parametrize(
    ("outcome", "message"),
    [("acuracy", "there is no metric"), ("skills", "is not measured by this study")],
)
def test_a_declared_outcome_that_will_not_be_measured_is_refused(
    outcome: str, message: str, results: fractionate.Results
):
    declared = {
        "outcome": outcome,
        "factor": "method.rollout",
        "treatment": "student",
        "control": "teacher",
    }
    tree = {**results.plan.study.model_dump(mode="json"), "hypotheses": [declared]}
    with pytest.raises(StudyFileError, match=rf"hypotheses\[0\]\.outcome.*{message}"):
        fractionate.plan(fractionate.Study.model_validate(tree))
