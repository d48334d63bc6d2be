"""What a person sees while a model trains: steps, the last one's figures, and what is going on at the moment."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from noisyjax import hosts
from noisyjax.display import Display

SHOWN = (
    ("loss", "loss {:.4f}"),
    ("reward/total", "reward {:.3f}"),
    ("reward/outcome", "outcome {:.2f}"),
    ("reward/rationale", "rationale {:.2f}"),
    ("kl", "kl {:.4f}"),
    ("entropy", "entropy {:.2f}"),
    ("length/mean", "{:.0f} tokens"),
    ("sample/truncated", "{:.0%} cut"),
    ("speed/rollout", "rollout {:.0f} tok/s"),
    ("speed/judge", "judge {:.0f} verdicts/s"),
    ("speed/update", "update {:.0f} tok/s"),
)
"""Metrics on the live line, in this order, where a run has them."""


class TrainProgress(Display):
    """Counts steps; `done` is the step that the run goes on from."""

    _figures = ""
    _warm: tuple[int, float] | None = None  # the session's first step, and the seconds when it was done

    @property
    def quiet(self) -> bool:
        return not hosts.first()

    def opening(self) -> str:
        return f"step {self.done} of {self.total}"

    def counted(self) -> str:
        return f"step {self.done}/{self.total}"

    def figures(self) -> str:
        """Of the last step."""
        return self._figures

    def seconds_left(self) -> float | None:
        """By the pace of this session's steps but the first, which compiles; None before the second."""
        if self._warm is None or self.done <= self._warm[0]:
            return None
        step, at = self._warm
        return (self.total - self.done) * (self.seconds() - at) / (self.done - step)

    @contextmanager
    def stage(self, words: str) -> Iterator[None]:
        """Names what is going on inside (rollout, judge, update, evaluation)."""
        self.show(f"{words} {self._figures}")
        yield

    def step(self, number: int, metrics: Mapping[str, float | None]) -> None:
        """A step is done."""
        self.done = number
        self._warm = self._warm or (number, self.seconds())
        known = ((form, metrics.get(name)) for name, form in SHOWN)
        self._figures = ", ".join(form.format(value) for form, value in known if value is not None)
        self.show(self._figures, plain="")
