"""From completions to verdicts, asked for once, and from verdicts to rewards. No model runs here."""

import pytest

from noisyjax.chat import ChatTokenizer
from noisyjax.instruct import prompt_stream
from noisyjax.records import Completion, Finish, Verdict
from noisyjax.train.grading import Grader
from noisyjax.train.objective.metrics import reduce
from noisyjax.train.rollout import Rollout

TEXTS = ("<think>box 3 has code 1 .</think>{i}", "<think>Hm.</think>x", "<think> </think>{i}")
REWARD = {"reward_fn": None, "combination": "outcome", "format": {"role": "none"}, "distraction": {"judged": True}}
MODEL = {"kind": "engine", "engine": {"kind": "remote", "base_url": "http://nowhere.invalid/v1", "model": "m"}}


class Recording:
    """Says yes to whatever holds a digit, and keeps what it was asked."""

    name = "recording"

    def __init__(self):
        self.calls = []

    def _say(self, kind, items):
        self.calls.append((kind, [item.candidate for item in items]))
        return [Verdict(any(c.isdigit() for c in i.candidate), self.name, reason=i.candidate) for i in items]

    def outcomes(self, items):
        return self._say("outcomes", items)

    def rationales(self, items):
        return self._say("rationales", items)

    def distractions(self, items):
        return self._say("distractions", items)


@pytest.fixture
def rollouts(grpo, folder):
    """The first four records in the file's order: r0 to r3, of which r2 and r3 have noise. Three completions each."""
    config = grpo(data={"shuffle": False})
    stream = prompt_stream(config.data, ChatTokenizer.load(folder), seed=0)
    asked = stream.take(4).items
    stream.close()
    return [
        Rollout(a.record.id, a, tuple(Completion("", n, text.format(i=i), Finish.STOP) for n, text in enumerate(TEXTS)))
        for i, a in enumerate(asked)
    ]


@pytest.fixture
def grader(grpo, folder):
    config = grpo(reward=REWARD, judge=MODEL)
    return Grader(config.reward, config.data.prompt, ChatTokenizer.load(folder), Recording())


def refuse(note):
    raise AssertionError(note)


def test_every_verdict_is_asked_for_once_and_finds_its_sample(grader, rollouts):
    judged = grader.judge(rollouts, refuse)
    thoughts = [thought for _ in range(2) for thought in ("box 3 has code 1 .", "Hm.")]
    asked = [("outcomes", [text for i in range(4) for text in (f"{i}", "x", f"{i}")]), ("distractions", thoughts)]
    assert grader.asked.calls == asked
    for i, group in enumerate(judged):
        assert group.rollout is rollouts[i]
        assert [v.reason for v in group.outcomes] == [f"{i}", "x", f"{i}"]
        assert [v and v.value for v in group.distractions] == ([True, False, None] if i >= 2 else [None] * 3)
        assert group.outcome_g.tolist() == [1, 0, 1]
        assert group.verdicts == (5 if i >= 2 else 3)
    whole, part = grader.grade(judged), grader.grade(judged[2:])
    assert grader.asked.calls == asked
    assert whole.rewards.total_n.tolist() == [1, 0, 1] * 4
    assert part.rewards.total_n.tolist() == [1, 0, 1] * 2
    found = reduce(whole.metrics)
    assert found["distraction/judged"] == 0.5
    assert found["distraction/judged_undefined"] == pytest.approx(1 / 3)  # the empty thoughts


def test_a_batch_of_nothing_has_no_rewards_and_no_figures(grader):
    graded = grader.grade(grader.judge([], refuse))
    assert grader.asked.calls == []
    assert graded.rewards.reward_nc.shape == (0, 1)
    assert reduce(graded.metrics)["reward/total"] is None


def test_without_the_switch_nobody_is_asked(grpo, folder, rollouts):
    config = grpo(reward=REWARD | {"distraction": {}})
    grader = Grader(config.reward, config.data.prompt, ChatTokenizer.load(folder), Recording())
    graded = grader.grade(grader.judge(rollouts, refuse))
    assert [kind for kind, _ in grader.asked.calls] == ["outcomes"]
    assert not any(name.startswith("distraction/judged") for name in graded.metrics)
