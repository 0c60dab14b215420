r"""In which style a response is written: Spanish or English by function words, or the dialect.

The offline stand-in for a judge that reads every response. It counts frequent function words that
only one of the two languages has; what both write alike (mathematics, tags, code, the answer) does
not count. Limits: it knows two languages and takes Portuguese, Italian or French for Spanish as
far as they share its words; a trace in both languages is given to the one with more function words;
fewer than `ENOUGH` of them leave a response undetermined.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from fractionate.tasks.sandbox.traces import dialect_share

SPANISH: Final = frozenset(
    """
    al aquí así cada como con cual cuando cuyo de del desde donde el ella ellos en entonces
    entre es esta este estos está están esto hacia hasta la las le les lo los luego muy más
    ni nos otra otro para pero podemos por porque pues que qué se sea sean ser si sobre su
    sus también tan tanto tenemos tiene todo todos tras un una unas uno unos ya
    """.split()  # noqa: SIM905 - eighty quoted words read worse
)
ENGLISH: Final = frozenset(
    """
    about after all also an and any are at be because been before between both but by can
    could do does each for from had have how if in into is it its let more most must need
    not now of on only or other our out should since than that the their then there
    therefore these they this those to was we were what when where which while who will with
    would you your
    """.split()  # noqa: SIM905 - eighty quoted words read worse
)
"""Function words of one language that are none of the other's; single letters are variables."""

ENOUGH: Final = 5
"""Function words without which nothing is said about a response."""

_ANSWER = re.compile(r"<answer>.*?(</answer>|$)", re.DOTALL | re.IGNORECASE)
_CODE = re.compile(r"```.*?(```|$)|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)
_TAG = re.compile(r"</?[A-Za-z_]+>|\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class LanguageScore:
    """Function words of a response.

    Attributes:
        spanish: Hits of Spanish.
        english: Hits of English.
        words: Words that were looked at.
    """

    spanish: int
    english: int
    words: int

    @property
    def score(self) -> float | None:
        """Spanish share of the hits; none without any."""
        hits = self.spanish + self.english
        return self.spanish / hits if hits else None

    @property
    def is_spanish(self) -> bool | None:
        """Whether the response is mainly Spanish; none where there is too little to go by."""
        score = self.score
        if score is None or self.spanish + self.english < ENOUGH:
            return None
        return score >= 0.5


def language_score(text: str) -> LanguageScore:
    """Count function words; the answer block, tags, code, formulas and numbers are left out."""
    for pattern in (_ANSWER, _CODE, _TAG):
        text = pattern.sub(" ", text)
    words = [word.lower() for word in _WORD.findall(text)]
    return LanguageScore(
        spanish=sum(word in SPANISH for word in words),
        english=sum(word in ENGLISH for word in words),
        words=sum(len(word) > 1 for word in words),
    )


def is_spanish(text: str) -> bool | None:
    """Whether a response is mainly Spanish; none if undetermined."""
    return language_score(text).is_spanish


def is_in_dialect(text: str) -> bool | None:
    """Whether a trace of the sandbox is mainly in its second dialect; none if nothing tells."""
    share = dialect_share(text)
    return None if share is None else share >= 0.5


StyleKind = Literal["spanish", "dialect"]
STYLES: Final[Mapping[StyleKind, Callable[[str], bool | None]]] = {
    "spanish": is_spanish,
    "dialect": is_in_dialect,
}
"""Whether a response has the style; none if undetermined."""
