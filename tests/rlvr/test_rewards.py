import pytest
from worlds import EvenFirst

from fractionate.metrics.verdicts import Answer
from fractionate.rlvr.rewards import Rewarder, format_terms
from fractionate.tasks.sandbox.countdown import SandboxCountdown


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("<think> a </think> <answer> b </answer>", (1.0, 1.0, 1.0)),
        ("\n<think>a</think>\n\n<answer>b</answer>\n", (1.0, 1.0, 1.0)),
        ("well: <think>a</think><answer>b</answer>", (1.0, 1.0, 0.0)),
        ("<answer>b</answer><think>a</think>", (1.0, 0.0, 0.0)),
        ("<think>a</think><answer>b</answer><answer>c</answer>", (0.5, 1.0, 0.0)),
        ("<answer>b</answer>", (0.5, 0.0, 0.0)),
        ("<think>a <answer>b", (0.0, 0.0, 0.0)),
        ("", (0.0, 0.0, 0.0)),
    ],
)
def test_the_three_terms_of_the_format_reward(text, terms):
    assert format_terms(text) == terms


def _answer(text: str) -> Answer:
    return Answer(text, tokens=4, truncated=False)


def test_a_right_answer_earns_its_reward_and_nothing_for_format_unless_asked():
    problem = EvenFirst().problems("train", 1)[0]
    bare = Rewarder(EvenFirst(), correct=2.0, layout=0.0)
    laid_out = Rewarder(EvenFirst(), correct=2.0, layout=0.5)
    answers = [_answer("4"), _answer("5"), _answer("<think>4</think><answer>5</answer>")]
    problems = [problem] * len(answers)
    assert [reward.value for reward in bare(problems, answers)] == [2.0, 0.0, 0.0]
    assert [reward.value for reward in laid_out(problems, answers)] == [2.0, 0.0, 1.5]


def test_the_sandbox_is_rewarded_by_the_verifier_of_its_text():
    task = SandboxCountdown(3)
    problem = task.problems("train", 1)[0]
    right = task.demonstration(problem, seed=0)
    wrong = "<answer> 1 + 1 = 2 </answer>"
    rewards = Rewarder(task, correct=2.0, layout=0.0)(
        [problem] * 3, [_answer(right), _answer(wrong), _answer("")]
    )
    assert [reward.value for reward in rewards] == [2.0, 0.0, 0.0]
    assert [reward.grade.answered for reward in rewards] == [True, True, False]
