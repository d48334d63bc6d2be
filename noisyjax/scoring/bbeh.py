r"""BIG-Bench Extra Hard: the official reading and matching rules (google-deepmind/bbeh, bbeh/evaluate.py).

`official_answer` is official to the letter, oddities included: prefixes are case-sensitive and are tried one after
another on what the one before left; without a prefix the first line of the whole response is the answer; a box must
end it. `flexible_answer` forgives what chat models wrap around an answer: emphasis, blanks, case, a box in mid-text.
"""

import re

from noisyjax.scoring.extract import ANSWER_COLON, ANSWER_IS, clean, last_boxed, last_of, last_tag

_PREFIXES = ("The answer is:", "The final answer is ", "The final answer is: ", "The answer is ")
_WRAPPERS = ("boxed{", "text{", "texttt{")


def prefixed(response: str) -> str | None:
    """What follows the benchmark's answer prefix, or None where no prefix occurs."""
    rest: str | None = None
    for prefix in _PREFIXES:
        text = response if rest is None else rest
        if prefix in text:
            rest = text.rpartition(prefix)[2]
    return rest


def official_answer(response: str) -> str:
    """The prediction in the form in which it is compared."""
    answer = (response if (rest := prefixed(response)) is None else rest).strip()
    answer = _unwrap(answer.removesuffix(".")).lower()
    return answer.replace(", ", ",").replace("**", "").split("\n")[0].removesuffix(".")


def _unwrap(answer: str) -> str:
    if answer.startswith("$") and answer.endswith("$"):
        answer = answer[1:-1]
    for wrapper in _WRAPPERS:
        if wrapper in answer and answer.endswith("}"):
            answer = answer[:-1].split(wrapper)[1]
    return answer


def matches(prediction: str, target: str) -> bool:
    """The official fuzzy match of a prediction in comparison form with a raw target."""
    reference = target.strip().lower().replace(", ", ",")
    if prediction == reference:
        return True
    if _is_option(prediction):
        return prediction[1] == reference
    if _is_option(reference):
        return reference[1] == prediction
    return (
        _same_number(prediction, reference)
        or prediction.replace("'", "") == reference.replace("'", "")
        or f"[{reference}]" == prediction
        or f"[{prediction}]" == reference
        or prediction == reference + "?"
    )


def _is_option(text: str) -> bool:
    return len(text) == 3 and text[0] == "(" and text[2] == ")"


def _same_number(left: str, right: str) -> bool:
    try:
        return float(left) == float(right)
    except ValueError:
        return False


def flexible_answer(response: str) -> str:
    """The prediction read leniently, in comparison form: the last tag, box or answer marker, else the official one."""
    found = last_of(last_tag, last_boxed)(response)
    marker = max((m.end() for p in (ANSWER_COLON, ANSWER_IS) for m in p.finditer(response)), default=-1)
    if found and found.start >= marker:
        text = found.text
    elif marker >= 0:
        text = response[marker:].strip("*_: \n\t").split("\n")[0]
    else:
        text = official_answer(response)
    return re.sub(r"\s*,\s*", ",", clean(text.replace("**", "")).lower())
