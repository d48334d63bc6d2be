"""The judge is asked about open answers that the rules call wrong, once each, and its silence is no verdict."""

import json

import pytest
from evaluate_fakes import FakeEngine, fake_config, fake_run

from noisyjax.evaluate import OpenEngine, evaluate, load_results, rescore
from noisyjax.records import Completion, Finish

OPEN = "bench.datasets=[quickstart_facts, quickstart_choice]"
JUDGE = "judge={max_tokens: 64}"


class Examinee(FakeEngine):
    """Answers everything wrongly, in three ways; judges what it is asked as `verdicts` says by the question's words."""

    def __init__(self, verdicts=lambda text: "VERDICT: INCORRECT"):
        super().__init__()
        self.verdicts = verdicts
        self.judged: list[str] = []

    def _one(self, request, sample):
        if request.prompt.dataset == "judge":
            text = request.prompt.messages[-1].content
            self.judged.append(text)
            return Completion(request.id, sample, self.verdicts(text), Finish.STOP)
        if request.prompt.question_id.endswith(("0", "1", "2")):
            return Completion(request.id, sample, "Answer: half right", Finish.STOP)
        if request.prompt.question_id.endswith(("3", "4", "5")):
            return Completion(request.id, sample, "<think>Answer: cut off", Finish.LENGTH)
        return Completion(request.id, sample, "<think>x</think>Answer: quite wrong", Finish.STOP)


def verdict_of(text: str) -> str:
    return "It says the same.\nVERDICT: CORRECT" if "half right" in text else "VERDICT: INCORRECT"


def states_and_values(out) -> dict:
    results = load_results(str(out))
    return {
        key: (s.score.state.value, s.score.value, s.score.values.get("judge")) for key, s in results.samples.items()
    }


def test_verdicts_lift_and_leave(tmp_path):
    engine = fake_run(tmp_path, OPEN, JUDGE, "bench.questions=24", "bench.settings=[ND]", engine=Examinee(verdict_of))
    found = states_and_values(tmp_path)
    facts = {k: v for k, v in found.items() if k.cell.startswith("quickstart_facts")}
    right = [v for v in facts.values() if v == ("scored", 1.0, 1.0)]
    wrong = [v for v in facts.values() if v == ("scored", 0.0, 0.0)]
    cut = [v for v in facts.values() if v == ("truncated", None, None)]
    assert len(right) + len(wrong) + len(cut) == 24
    assert min(map(len, (right, wrong, cut))) > 0
    # letters are never judged, cut answers neither, and the thoughts are not shown
    assert all(v[2] is None for k, v in found.items() if k.cell.startswith("quickstart_choice"))
    assert len(engine.judged) == len(right) + len(wrong)
    assert not any("<think>" in text for text in engine.judged)
    results = load_results(str(tmp_path))
    assert results.values(results.cell("quickstart_facts", "ND")).values_q.mean() == pytest.approx(len(right) / 24)


def test_nothing_is_judged_twice(tmp_path):
    first = fake_run(tmp_path, OPEN, JUDGE, engine=Examinee(verdict_of))
    before = states_and_values(tmp_path)
    assert first.judged
    assert fake_run(tmp_path, OPEN, JUDGE, engine=Examinee(verdict_of)).judged == []
    assert states_and_values(tmp_path) == before


def test_a_judge_that_dies_is_gone_on_with(tmp_path):
    class Dies(Examinee):
        def _one(self, request, sample):
            if request.prompt.dataset == "judge" and len(self.judged) == 3:
                raise KeyboardInterrupt
            return super()._one(request, sample)

    straight = tmp_path / "straight"
    total = len(fake_run(straight, OPEN, JUDGE, engine=Examinee(verdict_of)).judged)
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        fake_run(broken, OPEN, JUDGE, engine=Dies(verdict_of))
    again = fake_run(broken, OPEN, JUDGE, engine=Examinee(verdict_of))
    assert all("judge" not in id for id, _ in again.asked)  # no sample was generated again
    assert len(again.judged) == total - 3
    assert states_and_values(broken) == states_and_values(straight)


def test_no_readable_verdict_is_unscored_and_asked_again(tmp_path):
    fake_run(tmp_path, OPEN, JUDGE, engine=Examinee(lambda text: "I would rather not say."))
    found = states_and_values(tmp_path)
    assert ("unscored", None, None) in found.values()
    assert not [v for k, v in found.items() if k.cell.startswith("quickstart_facts") and v[0] == "scored"]
    fake_run(tmp_path, OPEN, JUDGE, engine=Examinee(verdict_of))
    assert "unscored" not in {state for state, _, _ in states_and_values(tmp_path).values()}


def test_rescore_keeps_the_judge(tmp_path):
    fake_run(tmp_path, OPEN, JUDGE, engine=Examinee(verdict_of))
    before = states_and_values(tmp_path)
    assert rescore(str(tmp_path)).endswith("0 scores changed")
    assert states_and_values(tmp_path) == before
    # without the verdicts the wrong answers wait for a judge; they are not simply wrong
    (tmp_path / "verdicts.jsonl").unlink()
    rescore(str(tmp_path))
    assert "unscored" in {state for state, _, _ in states_and_values(tmp_path).values()}


def test_the_judge_is_named_in_the_report(tmp_path):
    from noisyjax.report import to_markdown
    from noisyjax.report.reading import read

    fake_run(tmp_path, OPEN, JUDGE, engine=Examinee(verdict_of))
    text = to_markdown(read([str(tmp_path)]).reports)
    assert "judge: fake/outcome-" in text.replace("\\_", "_")
    assert "judge" in json.loads((tmp_path / "manifest.json").read_text())["about"]


def test_another_engine_as_judge_is_opened_and_closed(tmp_path, monkeypatch):
    from noisyjax.evaluate import judging

    made = []

    def open_engine(config):
        assert config.model == "referee"
        made.append(Examinee(verdict_of))
        return OpenEngine(made[-1], {})

    monkeypatch.setattr(judging, "open_engine", open_engine)
    referee = "judge={engine: {kind: remote, base_url: 'http://nowhere.invalid/v1', model: referee}}"
    tested = Examinee()
    evaluate(fake_config(tmp_path, OPEN, referee), OpenEngine(tested, {"weights": "fake"}))
    assert tested.judged == []
    assert made[0].judged
    assert made[0].closed
    assert not tested.closed
