"""The process in which math-verify runs: one JSON request a line in, one JSON reply a line out.

Started by file path, not as a module, so that it loads nothing of the application: sympy takes long enough. Its parent
kills it when it is late; should the parent be gone, the alarm ends it, also from within a big-integer product.
"""

import json
import os
import signal
import sys
from typing import Any

MEMORY_LIMIT = 4 << 30
"""Bytes of address space: a factorial that would fill the machine becomes a MemoryError of this process."""

RELATIVE_TOLERANCE = 1e-3


def limit_resources() -> None:
    """Cap this process's memory where the platform can, and let an alarm end it."""
    try:
        import resource
    except ImportError:  # not POSIX: the parent's deadline stands alone
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def compare(gold: str, answer: str) -> dict[str, Any]:
    """Whether `answer` equals `gold`, both LaTeX or plain expressions without delimiters.

    {"value": bool} or {"value": null, "reason": str}. An answer that cannot be parsed is wrong; a gold that cannot be
    parsed decides nothing. Both are wrapped in `$`: unanchored equations would be read from their last number on.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    def parsed(text: str) -> list[Any]:
        config = [LatexExtractionConfig(), ExprExtractionConfig()]
        # No timeouts of its own: they swallow the alarm and return "wrong". The deadline is the parent's.
        return parse(f"${text}$", extraction_config=config, parsing_timeout=None, raise_on_error=False)

    gold_parsed = parsed(gold)
    if not any(not isinstance(item, str) for item in gold_parsed):
        return {"value": None, "reason": f"the gold answer cannot be parsed: {gold[:80]!r}"}
    answer_parsed = parsed(answer)
    equal = verify(
        gold_parsed, answer_parsed, float_rounding=6, numeric_precision=15, strict=True, timeout_seconds=None
    )
    return {"value": bool(equal) and not _differ_in_scale(gold_parsed[0], answer_parsed[0])}


def _differ_in_scale(gold: Any, answer: Any) -> bool:
    """Whether two numbers are equal only because both round to 0 at six decimals: 1/2004! and 1/2006!."""
    if not (getattr(gold, "is_number", False) and getattr(answer, "is_number", False)):
        return False
    exact, other = gold.evalf(15), answer.evalf(15)
    return bool(abs(exact - other) > RELATIVE_TOLERANCE * abs(exact)) if exact.is_comparable and exact != 0 else False


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if hasattr(signal, "alarm"):
        signal.alarm(int(request["deadline"]) + 2)
    try:
        return compare(request["gold"], request["answer"])
    except (Exception, RecursionError) as error:  # noqa: BLE001  the reply carries it; the parent shows the reason
        return {"value": None, "reason": f"math-verify failed: {type(error).__name__}: {error}"[:300]}
    finally:
        if hasattr(signal, "alarm"):
            signal.alarm(0)


def main() -> None:
    """Serve requests until standard input ends."""
    # The protocol owns the real standard output; whatever a library prints goes to standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    limit_resources()
    import logging

    logging.disable(logging.CRITICAL)
    compare("1", "1")
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
