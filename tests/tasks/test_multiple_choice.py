"""Reading one letter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import EXAMPLES
from fractionate.tasks.multiple_choice import extract_choice


@pytest.mark.parametrize(("text", "strict", "lenient"), EXAMPLES["mcq"])
def test_worked_choices(text, strict, lenient):
    assert extract_choice(text, 4) == strict
    assert extract_choice(text, 4, lenient=True) == lenient


@pytest.mark.parametrize(
    ("block", "strict", "lenient"),
    [
        ("(c)", "C", "C"),
        ("C)", "C", "C"),
        ("C:", "C", "C"),
        ("** C **", "C", "C"),
        ("B. nitrogen", None, "B"),
        ("(B) nitrogen\nand more", None, "B"),
        ("**B**: nitrogen", None, "B"),
        ("B nitrogen", None, None),
        ("(B", None, None),
        ("A, B", None, None),
        ("E. argon", None, None),
        ("Ｂ", None, None),
        ("ſ", None, None),
        ("", None, None),
        ("**", None, None),
    ],
)
def test_forms_of_one_letter(block, strict, lenient):
    text = f"<answer>{block}</answer>"
    assert extract_choice(text, 4) == strict
    assert extract_choice(text, 4, lenient=True) == lenient


def test_the_number_of_options_decides_which_letters_count():
    assert extract_choice("<answer>E</answer>", 5) == "E"
    assert extract_choice("<answer>B</answer>", 1) is None


@pytest.mark.parametrize("n_options", [0, 27])
def test_options_without_letters_are_an_error(n_options):
    with pytest.raises(ValueError, match="n_options"):
        extract_choice("<answer>A</answer>", n_options)


@settings(derandomize=True, deadline=None)
@given(block=st.text(), n_options=st.integers(1, 26))
def test_no_text_raises_and_lenient_only_adds(block, n_options):
    text = f"<answer>{block}</answer>"
    strict = extract_choice(text, n_options)
    lenient = extract_choice(text, n_options, lenient=True)
    assert strict in {None, lenient}
    assert lenient is None or lenient in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:n_options]
