"""Does a distractor hold the answer? Checked for every pair of question and unit, answer and aliases alike.

Texts are compared in normal form (no case, accents, punctuation or articles) at word boundaries. Not looked for, as
their occurrence gives nothing away:
- answers shorter than `min_chars` in normal form: numbers up to 999, single letters, "pen";
- verdicts: yes, no, true, false, unknown, insufficient information and their like;
- options of fewer than `min_words` words in multiple-choice sets: "the grandfather" is named in any family chat.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from noisyjax.bench.questions.load import gold_option
from noisyjax.records import Question, Unit

VERDICTS = frozenset(
    {"yes", "no", "true", "false", "none", "null", "both", "neither", "unknown", "proved", "disproved", "unanswerable"}
    | {"insufficient information", "not enough information", "not enough info", "cannot be determined"}
)
_MARKS = re.compile(r"[^\w\s]|_")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normal_form(text: str) -> str:
    """Lower case without accents, punctuation and articles, single blanks: "The Café's 1,000" -> "cafe s 1 000"."""
    # Decomposed on both sides of casefold: either may bring forth what the other changes.
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    plain = "".join(c for c in folded if not unicodedata.combining(c))
    return " ".join(_ARTICLES.sub(" ", _MARKS.sub(" ", plain)).split())


@dataclass
class Checker:
    """The per-pair check. Normal forms of units are kept, since a shared block meets every question."""

    min_chars: int = 4
    min_words: int = 4
    _units: dict[str, str] = field(default_factory=dict)

    def terms(self, question: Question) -> tuple[str, ...]:
        """What must not occur in a distractor of `question`; () when nothing can be looked for."""
        if question.choices:
            gold = normal_form(gold_option(question))
            return (gold,) if len(gold.split()) >= self.min_words and gold not in VERDICTS else ()
        forms = dict.fromkeys(normal_form(answer) for answer in question.answers)
        return tuple(form for form in forms if len(form) >= self.min_chars and form not in VERDICTS)

    def found(self, terms: Iterable[str], unit: Unit) -> str | None:
        """The first of `terms` that `unit` holds."""
        if unit.id not in self._units:
            self._units[unit.id] = f" {normal_form(unit.text)} "
        text = self._units[unit.id]
        return next((term for term in terms if f" {term} " in text), None)
