import pytest
import torch

import tiny
from fractionate.metrics.verdicts import Answer, count_verdicts, read_answers
from fractionate.models.load import wrap
from fractionate.records import StopReason
from fractionate.rollouts.completions import Completions
from fractionate.tasks.base import Grade, Problem


def completions(rows, stop):
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    blank = torch.zeros(tokens.shape)
    return Completions(tokens, lengths, blank, torch.zeros_like(tokens), tuple(stop))


@pytest.fixture(scope="module")
def model():
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["3", "4"]})
    return wrap(tiny.llama(), tokenizer)


def test_stop_and_padding_are_left_out_and_other_special_tokens_stay(model):
    written = completions([[6, 8, 2], [7, 8, 9]], [StopReason.STOP, StopReason.LENGTH])
    found = read_answers(model, written, torch.tensor([0.5, 0.25]))
    assert [answer.text.split() for answer in found] == [["3", "5"], ["4", "5", "6"]]
    assert [answer.truncated for answer in found] == [False, True]
    assert [(answer.tokens, answer.entropy) for answer in found] == [(3, 0.5), (3, 0.25)]


def test_a_lone_stop_token_is_an_empty_text(model):
    found = read_answers(model, completions([[2]], [StopReason.STOP]))
    assert found == [Answer(text="", tokens=1, truncated=False)]


class Judge:
    name = "judge"

    def __init__(self):
        self.asked = []

    def problems(self, split, n=None):  # noqa: ARG002 - the protocol's own arguments
        return []

    def grade(self, _problem, completion):
        self.asked.append(completion)
        if not completion:
            return Grade(False, "no_answer", answered=False)
        return Grade(True, "ok", answered=True, solution=completion.lower())

    def demonstration(self, _problem, *, seed):  # noqa: ARG002 - the protocol's own argument
        return ""


def count(*answers, judge=None):
    return count_verdicts(
        judge or Judge(), Problem("p", (), {}), answers, suite="coverage", temperature=1.0
    )


def test_counts_of_one_item():
    record = count(Answer("A", 2, False), Answer("a", 3, False), Answer("", 5, True))
    assert (record.samples, record.correct, record.distinct) == (3, 2, 1)
    assert (record.unanswered, record.truncated, record.tokens) == (1, 1, 10)
    assert record.reasons == {"no_answer": 1, "ok": 2}


def test_equal_texts_are_judged_once_and_counted_each():
    judge = Judge()
    record = count(Answer("a", 1, False), Answer("a", 1, False), judge=judge)
    assert (judge.asked, record.correct) == (["a"], 2)


def test_entropy_is_a_mean_over_positions():
    assert count(Answer("a", 1, False, 1.0), Answer("b", 3, False, 0.2)).entropy == pytest.approx(
        0.4
    )


def test_entropy_is_none_unless_all_were_measured():
    assert count(Answer("a", 1, False, 1.0), Answer("b", 3, False)).entropy is None
