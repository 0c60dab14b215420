"""The verifier: worked verdicts, extraction, hostile text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import BUGS, EXAMPLES
from fractionate.tasks.countdown import Verdict, extract_answer, verify, verify_expression

SEARCH = settings(derandomize=True, deadline=None, max_examples=150)
HOSTILE = st.one_of(
    st.text(),
    st.text(alphabet="0123456789+-*/=,() \n×÷−٣²"),
    st.lists(
        st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "2+3=5", ",5*4=20"])
    ).map("".join),
)


@pytest.mark.parametrize(("answer", "operands", "target", "ok", "reason"), EXAMPLES["cd"])
def test_worked_verdicts(answer, operands, target, ok, reason):
    assert verify(answer, operands, target) == Verdict(ok=ok, reason=reason)


@pytest.mark.parametrize(("text", "extracted", "ok", "reason"), EXAMPLES["cdx"])
def test_worked_extractions(text, extracted, ok, reason):
    assert extract_answer(text) == extracted
    assert verify(extracted, [2, 3, 4], 20) == Verdict(ok=ok, reason=reason)


@pytest.mark.parametrize("row", BUGS["B31"]["verdicts"], ids=lambda row: row["id"])
def test_reported_holes_are_closed_by_the_chain_rules(row):
    answer = row.get("extracted", row["text"])
    if "extracted" in row:
        assert extract_answer(row["text"]) == row["extracted"]
    assert verify(row["text"], row["operands"], row["target"]).reason == row["chain_verdict"]
    assert verify(answer, row["operands"], row["target"]).reason == row["chain_verdict"]
    if "chain_text" in row:
        verdict = verify(row["chain_text"], row["operands"], row["target"])
        assert verdict.reason == row["chain_text_verdict"]


@pytest.mark.parametrize("row", BUGS["B31"]["verdicts"], ids=lambda row: row["id"])
def test_reported_holes_are_closed_for_free_expressions(row):
    answer = row.get("extracted", row["text"])
    assert verify_expression(answer, row["operands"], row["target"]).ok is row["expression_ok"]


def test_an_unfinished_thought_holds_no_answer():
    row = next(row for row in BUGS["B32"]["verdicts"] if row["id"] == "B32.11")
    assert row["right"] == "no answer"
    assert extract_answer(row["text"]) is None
    assert extract_answer(row["text"] + "<answer>42</answer>") is None


def test_a_thought_opened_again_hides_only_what_follows_it():
    assert extract_answer("<think>a</think><think>b<answer>1</answer>") is None
    assert extract_answer("<think>a</think><answer>1</answer><think>b<answer>2</answer>") == "1"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 1 </answer><answer>2", "1"),
        ("<answer>1<answer>2</answer>", "2"),
        ("<answer>1</answer>2</answer>", "1"),
        ("</answer><answer>1", None),
        ("<ANSWER>1</ANSWER>", None),
    ],
)
def test_the_last_complete_block_is_the_answer(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "no_answer"),
        (" \n ", "empty"),
        (" 2 + 3\t= 5 ,\n5 × 4 = 20 ", "ok"),
        ("(2)+3=(5),5*4=20", "ok"),
        ("((2))+3=5,5*4=20", "syntax"),
        ("2+3=5,5*4=20,", "syntax"),
        ("2+3=5,,5*4=20", "syntax"),
        ("2+٣=5,5*4=20", "syntax"),
        ("2+３=5,5*4=20", "syntax"),
        ("2+3=+5,5*4=20", "syntax"),
        ("2+3=5,5*4=2 0", "syntax"),
        ("2+3=5,5*4=20=20", "syntax"),
        ("2+3=6,nonsense", "arith"),
        ("9+3=12,nonsense", "operand"),
    ],
)
def test_grammar(answer, reason):
    assert verify(answer, [2, 3, 4], 20).reason == reason


def test_integers_have_at_most_eighteen_digits():
    longest = 10**18 - 1
    assert verify(f"{longest}-1={longest - 1}", [longest, 1], longest - 1).ok
    assert verify(f"{longest}+1={longest + 1}", [longest, 1], longest + 1).reason == "syntax"


def test_division_by_zero_has_its_own_reason():
    assert verify("5/0=0", [5, 0], 0).reason == "div0"
    assert verify("5/-2=-2", [5, -2], -2).reason == "nonint"
    assert verify("6/-2=-3", [6, -2], -3).ok


def test_the_order_of_operands_is_free():
    assert verify("4-2=2,2+3=5", [3, 2, 4], 5).ok


@SEARCH
@given(text=HOSTILE)
def test_no_text_raises(text):
    answer = extract_answer(text)
    assert answer is None or (answer in text and answer == answer.strip())
    for candidate in (text, answer):
        for judge in (verify, verify_expression):
            verdict = judge(candidate, [2, 3, 4], 20)
            assert verdict.ok == (verdict.reason == "ok")


@pytest.mark.parametrize(
    "unit",
    ["1", "1 ", " ", "(", ")", "-", "2+3=5,", "<answer>", "</answer>", "<think>", "1+", "-("],
)
def test_very_long_text_is_refused(unit):
    text = unit * 100_000
    assert not verify(text, [2, 3, 4], 20).ok
    assert not verify_expression(text, [2, 3, 4], 20).ok
    assert extract_answer(text) is None


@pytest.mark.parametrize(
    ("text", "operands", "target", "reason"),
    [
        ("(2+3)*4", [2, 3, 4], 20, "ok"),
        ("4 × (2+3) = 20", [2, 3, 4], 20, "ok"),
        ("8/(3-8/3)", [3, 3, 8, 8], 24, "ok"),
        ("10-4-3", [3, 4, 10], 3, "ok"),
        ("-6/3+9", [3, 9, -6], 7, "ok"),
        ("-2+5", [2, 5], 3, "operand"),
        ("-(2+3)", [2, 3], -5, "syntax"),
        ("2+3=6", [2, 3], 5, "arith"),
        ("2+3=", [2, 3], 5, "syntax"),
        ("2/3=2/0", [2, 3], 5, "div0"),
        ("2+3=5=5", [2, 3], 5, "syntax"),
        ("2/(3-3)", [2, 3, 3], 5, "div0"),
        ("2+3", [2, 3, 4], 5, "unused"),
        ("2+2", [2, 3], 4, "operand"),
        ("2+3", [2, 3], 6, "target"),
        ("(2+3", [2, 3], 5, "syntax"),
        ("2+3)", [2, 3], 5, "syntax"),
        ("2(3)", [2, 3], 6, "syntax"),
        ("02+3", [2, 3], 5, "syntax"),
        ("2**3", [2, 3], 8, "syntax"),
        ("", [2, 3], 5, "empty"),
        (None, [2, 3], 5, "no_answer"),
    ],
)
def test_free_expressions(text, operands, target, reason):
    assert verify_expression(text, operands, target).reason == reason
