"""pass@k and pass^k: unbiased estimators over n samples of one question, then the mean over questions.

Legend: Q questions, N samples.
"""

import numpy as np

from noisyjax.errors import UsageError


def _checked(n: int, c: int, k: int) -> None:
    if k < 1:
        raise UsageError(f"k is {k}; pass@k and pass^k need k of at least 1")
    if n < k:
        raise UsageError(f"k={k} needs at least {k} samples a question, there are {n}: draw more samples or lower k")
    if not 0 <= c <= n:
        raise UsageError(f"{c} correct of {n} samples is not possible")


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples is correct, drawn from n of which c are: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, evaluated as a product in float64. Raises UsageError when n < k.
    """
    _checked(n, c, k)
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1, dtype=np.float64)))


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of k samples are correct (pass^k of tau-bench): C(c, k) / C(n, k). UsageError when n < k."""
    _checked(n, c, k)
    if c < k:
        return 0.0
    i = np.arange(k, dtype=np.float64)
    return float(np.prod((c - i) / (n - i)))


def per_question(values_qn: np.ndarray, metric: str, k: int) -> np.ndarray:
    """One number per question from its samples: `mean` (pass@1), `pass@k` or `pass^k`.

    values_qn: float [Q, N], each sample's headline number, nan where it is unscored. Returns float64 [Q], nan where a
    question has no scored sample, or fewer than k. UsageError when N < k or when a pass metric meets a partial mark.
    """
    values_qn = np.asarray(values_qn, dtype=np.float64)
    scored_q = np.isfinite(values_qn).sum(axis=1)
    total_q = np.nansum(values_qn, axis=1)
    if metric == "mean":
        return np.divide(total_q, scored_q, out=np.full(len(total_q), np.nan), where=scored_q > 0)
    estimators = {"pass@k": pass_at_k, "pass^k": pass_hat_k}
    if metric not in estimators:
        raise UsageError(f"unknown aggregate {metric!r}; known: mean, pass@k, pass^k")
    _checked(values_qn.shape[1], 0, k)
    if not np.isin(values_qn[np.isfinite(values_qn)], (0.0, 1.0)).all():
        raise UsageError(f"{metric} needs right-or-wrong marks; this metric gives partial ones")
    pairs = zip(scored_q, total_q, strict=True)
    return np.array([estimators[metric](int(n), int(c), k) if n >= k else np.nan for n, c in pairs])
