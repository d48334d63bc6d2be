"""The two kinds of failure a person can cause or meet; everything else is a bug and keeps its traceback."""

import difflib
from collections.abc import Iterable


class NoisyjaxError(Exception):
    """A failure with one readable message that says what to do. `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(NoisyjaxError):
    """The request itself cannot be carried out: a bad key, a missing file, an unknown name. Exit code 2."""

    exit_code = 2


class RunError(NoisyjaxError):
    """A sound request failed while running: an endpoint that went away, a full disk. Exit code 1."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A clause that names the closest of `known` to `word`, or lists them when nothing is close.

    >>> nearest("musiqe", ["musique", "bbq"])
    "did you mean 'musique'?"
    """
    options = sorted(set(known))
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6) or difflib.get_close_matches(
        word.lower(), options, n=1, cutoff=0.6
    )
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(options)
