"""Tasks with data go through the same evaluation as all others."""

from pathlib import Path

import pytest

import tiny
from fractionate.config import (
    Accuracy,
    Evaluate,
    Gsm8kTask,
    Lengths,
    MathTask,
    MedReasonTask,
    ScienceTask,
    Source,
    Temperature,
)
from fractionate.evaluate import Suite, evaluate
from fractionate.models.load import wrap
from fractionate.tasks.build import build_task

ROWS = Path(__file__).parents[1] / "data" / "rows"


def at(name):
    return (Source(path=ROWS / f"{name}.jsonl"),)


TASKS = {
    "science": ScienceTask(source=at("sciknoweval"), test=3),
    "medreason": MedReasonTask(source=at("medreason"), train=None, selection=0, test=3),
    "math": MathTask(source=at("numina_math"), test_source=at("math_500"), exclude=(), test=3),
    "gsm8k": Gsm8kTask(source=at("gsm8k_train"), test_source=at("gsm8k_test"), selection=0, test=3),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_item_is_sampled_graded_and_counted(name):
    records = evaluate(
        wrap(tiny.llama(), tiny.tokenizer()),
        config=Evaluate(accuracy=Accuracy(items=3), sparsity=None),
        suite=Suite(build_task(TASKS[name], None)),
        lengths=Lengths(prompt=250, evaluation=4),
        temperature=Temperature(),
        seed=0,
    )
    assert [record.suite for record in records] == ["accuracy"] * 3
    assert len({record.item for record in records}) == 3
    for record in records:
        assert sum(record.reasons.values()) == record.samples == 1
        assert record.unanswered == record.reasons.get("no_answer", 0) + record.reasons.get(
            "ambiguous", 0
        )
