import dataclasses
import math

import pytest
import torch

import tiny
from fractionate.config import (
    Accuracy,
    Coverage,
    Drift,
    Evaluate,
    Gradients,
    Harder,
    Harness,
    Lengths,
    Resampling,
    Temperature,
)
from fractionate.evaluate import Reference, Suite, evaluate
from fractionate.models.load import wrap
from fractionate.models.prompts import PromptTooLongError
from fractionate.tasks.base import Grade, Problem

LENGTHS = Lengths(prompt=8, completion=6, evaluation=6, harder=9)
ACCURACY = Evaluate(accuracy=Accuracy(items=10))
NOTHING = {"accuracy": None, "sparsity": None}


class Parity:
    """Right is a completion whose first word is even; the words that follow are its solution."""

    def __init__(self, name="parity", size=12):
        self.name = name
        self.size = size

    def problems(self, split, n=None):
        if n is not None and n > self.size:
            raise ValueError(f"{split} holds {self.size} problems, not {n}")
        return [
            Problem(f"{self.name} {i}", ({"role": "user", "content": f"{i} {i}"},), {})
            for i in range(self.size if n is None else n)
        ]

    def grade(self, _problem, completion):
        words = completion.split()
        if not words:
            return Grade(False, "no_answer", answered=False)
        correct = words[0].isdigit() and int(words[0]) % 2 == 0
        return Grade(correct, "ok" if correct else "odd", True, completion if correct else None)

    def demonstration(self, _problem, *, seed):  # noqa: ARG002 - the protocol's own argument
        return "2"


def model(seed=0, **changes):
    return wrap(tiny.llama(seed, **changes), tiny.tokenizer())


@pytest.fixture(scope="module")
def student():
    return model(1)


@pytest.fixture(scope="module")
def teacher():
    return model(2, width=64)


def run(measured, config=ACCURACY, suite=None, **fields):
    arguments = {"lengths": LENGTHS, "temperature": Temperature(), "seed": 0, **fields}
    return evaluate(measured, config=config, suite=suite or Suite(Parity()), **arguments)


def test_one_record_per_item_in_the_order_of_the_task(student):
    records = run(student)
    assert [record.item for record in records] == [f"parity {i}" for i in range(10)]
    assert {(r.suite, r.temperature, r.samples) for r in records} == {("accuracy", 0.5, 1)}


def test_every_sample_has_one_reason_and_counts_agree(student):
    config = Evaluate(accuracy=None, coverage=Coverage(items=5, samples=16, temperatures=(1.0,)))
    for record in run(student, config):
        assert sum(record.reasons.values()) == record.samples == 16
        assert record.reasons.get("ok", 0) == record.correct >= record.distinct
        assert record.reasons.get("no_answer", 0) == record.unanswered
        assert record.samples <= record.tokens <= 16 * LENGTHS.evaluation
        assert 0.0 < record.entropy <= torch.tensor(32.0).log()


def test_truncated_completions_are_counted(student):
    short = Lengths(prompt=8, evaluation=1)
    records = run(student, lengths=short)
    assert all(record.tokens == 1 for record in records)
    assert sum(record.truncated for record in records) >= 8  # the stop token is 1 of 32


def test_the_same_seed_gives_the_same_records(student):
    assert run(student) == run(student)


def test_another_seed_gives_other_samples(student):
    config = Evaluate(accuracy=Accuracy(items=10, temperature=1.0))
    assert run(student, config) != run(student, config, seed=1)


def test_arms_share_random_numbers_whatever_else_is_measured(student):
    coverage = Coverage(items=5, samples=4, temperatures=(1.0,), k=(1,))
    alone = run(student, Evaluate(accuracy=None, coverage=coverage))
    among = run(student, Evaluate(coverage=coverage, accuracy=Accuracy(items=3)))
    assert [record for record in among if record.suite == "coverage"] == alone


def test_conditions_and_temperatures_have_streams_of_their_own(student):
    coverage = Coverage(items=8, samples=1, temperatures=(1.0, 1.5), k=(1,))
    config = Evaluate(accuracy=Accuracy(items=8, temperature=1.0), coverage=coverage)
    records = run(student, config)
    parts = [
        [dataclasses.replace(r, suite="", temperature=0.0) for r in records[i : i + 8]]
        for i in (0, 8, 16)
    ]
    assert len(records) == 24
    assert parts[0] != parts[1] != parts[2] != parts[0]


def test_greedy_decoding_does_not_depend_on_the_seed(student):
    config = Evaluate(accuracy=Accuracy(items=10, temperature=0.0))
    assert run(student, config) == run(student, config, seed=1)


def test_the_harder_task_has_its_own_limit(student):
    config = Evaluate(**NOTHING, harder=Harder(items=12, samples=8, temperature=1.0))
    records = run(student, config, Suite(Parity(), harder=Parity("harder")))
    assert {record.suite for record in records} == {"harder"}
    longest = max(record.tokens / record.samples for record in records)
    assert LENGTHS.evaluation < longest <= LENGTHS.harder


def test_skills_are_measured_greedily_one_suite_each(student):
    config = Evaluate(**NOTHING, forgetting="skills", skill_items=3)
    records = run(student, config, Suite(Parity(), skills=[Parity("even"), Parity("two")]))
    assert [record.suite for record in records] == ["skill:even"] * 3 + ["skill:two"] * 3
    assert {(record.temperature, record.samples) for record in records} == {(0.0, 1)}


def test_one_batch_of_skills_is_the_same_as_one_skill_at_a_time(student):
    config = Evaluate(**NOTHING, forgetting="skills", skill_items=3)
    skills = [Parity("even"), Parity("two")]
    together = run(student, config, Suite(Parity(), skills=skills))
    apart = [run(student, config, Suite(Parity(), skills=[skill])) for skill in skills]
    assert together == apart[0] + apart[1]


def test_a_skill_with_few_problems_gives_all_it_has(student):
    config = Evaluate(**NOTHING, forgetting="skills", skill_items=50)
    assert len(run(student, config, Suite(Parity(), skills=[Parity(size=4)]))) == 4


def test_skills_stop_where_no_right_answer_can_follow(student):
    config = Evaluate(**NOTHING, forgetting="skills")
    records = run(student, config, Suite(Parity(), skills=[Parity()]))
    assert max(record.tokens for record in records) <= 3


DRIFT = Evaluate(**NOTHING, drift=Drift(items=6))


def test_a_model_has_not_drifted_from_itself(student):
    config = Evaluate(**NOTHING, drift=Drift(items=6, to_teacher=False))
    records = run(student, config, base=student)
    assert [(record.suite, record.value) for record in records] == [("kl_to_base", 0.0)] * 6


def test_drift_is_measured_against_base_and_teacher(student, teacher):
    records = run(student, DRIFT, base=model(3), teacher=Reference(teacher))
    found = {(record.suite, record.temperature) for record in records}
    assert found == {("kl_to_base", 1.0), ("kl_to_teacher", 0.5)}
    assert all(record.value > 0 for record in records)


def test_all_arms_are_compared_on_the_same_completions(student, teacher):
    base = model(3)
    arms = [run(arm, DRIFT, base=base, teacher=Reference(teacher)) for arm in (student, base)]
    assert [record.tokens for record in arms[0]] == [record.tokens for record in arms[1]]


def test_the_teacher_may_see_more_than_the_student(student, teacher):
    config = Evaluate(**NOTHING, drift=Drift(items=4, to_base=False))
    shown = [{"role": "user", "content": "1 2 3"}]
    plain = run(student, config, teacher=Reference(teacher))
    informed = run(student, config, teacher=Reference(teacher, lambda _: shown))
    assert [record.item for record in plain] == [record.item for record in informed]
    assert [record.value for record in plain] != [record.value for record in informed]


def test_loss_temperatures_enter_the_distance_to_the_teacher(student):
    config = Evaluate(**NOTHING, drift=Drift(items=4, to_base=False))
    equal = Temperature(student_loss=0.7, teacher_loss=0.7)
    records = run(student, config, teacher=Reference(student), temperature=equal)
    assert all(record.value == 0.0 for record in records)


RESAMPLING = Evaluate(**NOTHING, resampling=Resampling(items=6, temperatures=(0.3, 1.0)))


def test_the_same_prompts_are_sampled_at_every_temperature(student, teacher):
    records = run(student, RESAMPLING, teacher=Reference(teacher))
    assert [(r.suite, r.temperature) for r in records] == [
        ("resampled", t) for t in (0.3, 1.0) for _ in range(6)
    ]
    assert [r.item for r in records[:6]] == [r.item for r in records[6:]]
    ceiling = math.log(len(tiny.VOCABULARY))
    assert all(0 < r.entropy <= ceiling and 0 < r.value <= ceiling for r in records)


def test_a_teacher_that_is_the_student_has_its_entropy(student):
    records = run(student, RESAMPLING, teacher=Reference(student))
    for record in records:
        assert record.value == pytest.approx(record.entropy, abs=1e-5)


def test_gradients_are_taken_on_prompts_of_the_training_split(student, teacher):
    config = Evaluate(**NOTHING, gradients=Gradients(prompts=2, batches=3))
    records = run(student, config, teacher=Reference(teacher))
    norms = [record for record in records if record.suite == "gradient_norm"]
    assert len(norms) == 4
    assert all(record.samples == 3 and record.value > 0 for record in norms)
    assert {r.item for r in records if r.suite == "policy_tv:student"} == {
        f"parity {i}" for i in range(6)
    }


def test_progress_is_reported_before_each_measurement(student):
    seen = []
    config = Evaluate(accuracy=Accuracy(items=2), forgetting="skills", skill_items=2)
    run(student, config, Suite(Parity(), skills=[Parity()]), report=seen.append)
    assert seen == [
        {"measure": "accuracy", "done": 0, "of": 2},
        {"measure": "skills", "done": 1, "of": 2},
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"harder": Harder()}, r"set evaluate\.harder: null"),
        ({"forgetting": "skills"}, r"set evaluate\.forgetting: null"),
        ({"drift": Drift(items=4)}, r"set evaluate\.drift\.to_base: false"),
        ({"drift": Drift(items=4, to_base=False)}, r"set evaluate\.drift\.to_teacher: false"),
        ({"resampling": Resampling(items=4)}, r"set evaluate\.resampling: null"),
        ({"gradients": Gradients()}, r"set evaluate\.gradients: null"),
        ({"forgetting": Harness()}, r"load_benchmarks, or set evaluate\.forgetting: null"),
        ({"accuracy": Accuracy(items=13)}, "holds 12 problems, not 13"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(student, fields, message):
    seen = []
    with pytest.raises(ValueError, match=message):
        run(student, Evaluate(**{"accuracy": Accuracy(items=2), **fields}), report=seen.append)
    assert seen == []


def test_bfloat16_weights_are_measured_like_any_other(student):
    stored = dataclasses.replace(student, module=tiny.llama(1).bfloat16())
    config = Evaluate(accuracy=Accuracy(items=4), drift=Drift(items=4, to_teacher=False))
    records = run(stored, config, base=student)
    assert all(0 < record.value < 0.05 for record in records if record.suite == "kl_to_base")


def test_long_prompts_are_refused_by_name(student):
    with pytest.raises(PromptTooLongError, match=r"'parity 0'.*lengths\.prompt"):
        run(student, lengths=Lengths(prompt=2))
