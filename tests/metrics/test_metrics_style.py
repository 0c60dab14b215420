"""Telling styles apart without a judge: function words, and the sandbox's dialect."""

import pytest

from cases import EXAMPLES
from fractionate.metrics.style import (
    ENGLISH,
    ENOUGH,
    SPANISH,
    LanguageScore,
    is_in_dialect,
    is_spanish,
    language_score,
)

SPANISH_TEXTS = (
    "<think> Primero sumamos los dos números para ver si la suma es más que la meta. </think>",
    "La fuerza que actúa sobre el cuerpo es igual a la masa por la aceleración, pero no la única.",
    "Entonces, como el ácido es más fuerte que la base, la reacción va hacia los productos.",
    "Tenemos tres cajas y en cada una hay doce manzanas, por lo que en total son treinta y seis.",
    "El paciente tiene fiebre desde hace dos días, así que una infección es lo más probable.",
)
ENGLISH_TEXTS = (
    "<think> First we add the two numbers to see if the result is more than the target. </think>",
    "The force that acts on the body is equal to its mass times its acceleration, but not all.",
    "Since the acid is stronger than the base, the reaction will shift towards the products.",
    "There are three boxes and each of them has twelve apples, so that is thirty-six in all.",
    "The patient has had a fever for two days, so an infection is the most likely of these.",
)


@pytest.mark.parametrize("text", SPANISH_TEXTS)
def test_spanish_is_told_by_its_function_words(text: str):
    assert is_spanish(text) is True


@pytest.mark.parametrize("text", ENGLISH_TEXTS)
def test_english_is_not_spanish(text: str):
    assert is_spanish(text) is False


def test_formulas_alone_are_undetermined():
    text = "<think> 7 * 8 = 56, 56 - 7 = 49 </think><answer>7*8=56</answer>"
    assert is_spanish(text) is None
    assert language_score(text).score is None


def test_fewer_function_words_than_enough_say_nothing():
    assert is_spanish(" ".join(["el"] * (ENOUGH - 1))) is None
    assert is_spanish(" ".join(["el"] * ENOUGH)) is True


def test_the_answer_code_and_formulas_do_not_count():
    text = "The force is the mass, so the answer is this. <answer>la el los las una</answer>"
    assert language_score(text).spanish == 0
    assert language_score("```\nfor x in the list: and or not\n```").english == 0


@pytest.mark.parametrize("name", ["lang_es", "lang_en", "lang_mx"])
def test_scores_are_shares_of_the_hits(name: str):
    spanish, english, score, words = EXAMPLES[name]
    assert LanguageScore(spanish, english, words).score == score


def test_no_function_word_belongs_to_both():
    assert not SPANISH & ENGLISH


def test_a_trace_is_in_the_dialect_if_most_of_its_signs_are():
    assert is_in_dialect("<think> 56 / 7 > 8 < 7 1 + </think> <answer> 7 + 1 = 8 </answer>") is True
    assert is_in_dialect("<think> 56 / 7 = 8 : 7 1 + </think>") is False
    assert is_in_dialect("<think> 56 / 7") is None
