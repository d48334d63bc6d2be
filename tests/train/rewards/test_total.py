import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.records import Finish, Verdict
from noisyjax.train.objective.advantages import advantages
from noisyjax.train.objective.config import AdvantageConfig
from noisyjax.train.objective.metrics import reduce
from noisyjax.train.rewards.config import RewardConfig
from noisyjax.train.rewards.samples import Case, read_sample
from noisyjax.train.rewards.total import combine, reward_metrics, verdict_values, wants_outcome, wants_rationale

NAN = float("nan")
COMBINATIONS = ("outcome", "additive", "weighted", "gated", "gated_soft", "rationale_only")
R, E = "<reference>", "</reference>"
FORMS = {
    "good": f"<think>{R}b{E}</think>4",
    "no reference": "<think>a</think>4",
    "no answer": f"<think>{R}b{E}</think>",
    "no close": f"{R}b{E} 4",
    "leak": f"<think>{R}b{E}</think>4{R}",
    "empty": "",
}


def config_of(combination: str, **more) -> RewardConfig:
    weights = {"outcome_weight": 2.0, "rationale_weight": 0.5} if combination == "weighted" else {}
    return RewardConfig(combination=combination, **weights, **more)


def totals(samples, outcome, rationale, config, penalties=None) -> list[float]:
    return combine(samples, np.array(outcome), np.array(rationale), config, penalties).total_n.tolist()


def same(left, right) -> bool:
    return np.array_equal(np.asarray(left, float), np.asarray(right, float), equal_nan=True)


@pytest.mark.parametrize(
    ("combination", "total"),
    [
        # (O, R):          11   10   01   00   1,.5  .5,.5
        ("outcome", [1.0, 1.0, 0.0, 0.0, 1.0, 0.5]),
        ("additive", [2.0, 1.0, 1.0, 0.0, 1.5, 1.0]),
        ("weighted", [2.5, 2.0, 0.5, 0.0, 2.25, 1.25]),
        ("gated", [1.0, 0.0, 0.0, 0.0, 0.5, 0.25]),
        ("gated_soft", [1.0, 0.5, 0.0, 0.0, 0.75, 0.375]),
        ("rationale_only", [1.0, 0.0, 1.0, 0.0, 0.5, 0.5]),
    ],
)
def test_combinations(sample, combination, total):
    outcome, rationale = [1, 1, 0, 0, 1, 0.5], [1, 0, 1, 0, 0.5, 0.5]
    assert totals([sample()] * 6, outcome, rationale, config_of(combination)) == total


@pytest.mark.parametrize(
    ("combination", "total"),
    [
        # (O, R):         n1   n0   1n   0n   nn
        ("outcome", [NAN, NAN, 1, 0, NAN]),
        ("additive", [NAN, NAN, NAN, NAN, NAN]),
        ("weighted", [NAN, NAN, NAN, NAN, NAN]),
        ("gated", [NAN, 0, NAN, 0, NAN]),
        ("gated_soft", [NAN, NAN, NAN, 0, NAN]),
        ("rationale_only", [1, 0, NAN, NAN, NAN]),
    ],
)
def test_an_undefined_verdict_is_never_a_default(sample, combination, total):
    outcome, rationale = [NAN, NAN, 1, 0, NAN], [1, 0, NAN, NAN, NAN]
    assert same(totals([sample()] * 5, outcome, rationale, config_of(combination)), total)


@pytest.mark.parametrize("hint", [None, "", " \n"])
@pytest.mark.parametrize(
    ("combination", "total"),
    [
        ("outcome", [1, 0, NAN]),
        ("additive", [1, 0, NAN]),
        ("weighted", [2, 0, NAN]),
        ("gated", [1, 0, NAN]),
        ("gated_soft", [1, 0, NAN]),
        ("rationale_only", [NAN, NAN, NAN]),
    ],
)
def test_without_a_gold_reference_the_term_is_absent(sample, hint, combination, total):
    samples = [sample(hint=hint)] * 3
    assert same(totals(samples, [1, 0, NAN], [1, 1, 1], config_of(combination)), total)
    assert same(totals(samples, [1, 0, NAN], [NAN] * 3, config_of(combination)), total)


def test_a_group_without_gold_has_the_advantages_of_the_outcome_alone(sample):
    """Beside a group that has it. A missing term must not act as a baseline, nor as a reward of 0."""
    without, beside = {"hint": None, "id": "w"}, {"id": "b"}
    no_reference = FORMS["no reference"]
    config = RewardConfig(format={"role": "none"})
    samples = [sample(**without), sample(no_reference, **without), sample(**without), *[sample(**beside)] * 3]
    rewards = combine(samples, np.array([1, 0, 0, 1, 1, 0]), np.array([NAN, NAN, NAN, 1, 0, 0]), config)
    assert rewards.names == ("outcome", "rationale")
    assert rewards.applies_nc.tolist() == [[True, False]] * 3 + [[True, True]] * 3
    got = advantages(
        rewards.reward_nc,
        [s.case.id for s in samples],
        AdvantageConfig(),
        weight_c=rewards.weight_c,
        applies_nc=rewards.applies_nc,
    )
    np.testing.assert_allclose(got.advantage_n, [1.1547, -0.57735, -0.57735, 1, 0, -1], atol=1e-4)


@pytest.mark.parametrize(
    ("form", "role", "outcome", "total"),
    [
        ("good", "gate", 1, 2),
        ("leak", "gate", 1, 1),  # O = 0, R is what it is
        ("leak", "none", 1, 2),
        ("leak", "added", 1, 2),
        ("good", "added", 1, 2.25),
        ("good", "added", 0, 1.25),
        ("no reference", "gate", 1, 0),
        ("no reference", "none", 1, 1),
        ("no answer", "none", 1, 1),  # nothing that could be right
        ("no close", "none", 1, 2),
        ("leak", "gate", NAN, 1),  # the form decides, so no verdict is missing
        ("no answer", "none", NAN, 1),
        ("good", "gate", NAN, NAN),
    ],
)
def test_the_part_of_the_format(sample, form, role, outcome, total):
    config = RewardConfig(format={"role": role, "weight": 0.25 if role == "added" else None})
    rationale = NAN if form == "no reference" else 1
    assert same(totals([sample(FORMS[form])], [outcome], [rationale], config), [total])


def test_the_added_format_term_weighs_one_unless_told(sample):
    samples = [sample(), sample(FORMS["leak"])]
    assert totals(samples, [0, 0], [0, 0], RewardConfig(format={"role": "added"})) == [1, 0]


@pytest.mark.parametrize(
    ("truncated", "total", "masked"),
    [("zero", 0, False), ("score", 2, False), ("mask", NAN, True)],
)
def test_a_truncated_completion(sample, truncated, total, masked):
    config = RewardConfig(truncated=truncated)
    rewards = combine([sample(finish=Finish.LENGTH), sample()], np.ones(2), np.ones(2), config)
    assert same(rewards.total_n, [total, 2])
    assert rewards.masked_n.tolist() == [masked, False]


def test_a_truncated_completion_has_no_format_term_but_feels_penalties(sample):
    """Otherwise a completion just under the limit would be worse off than one beyond it."""
    config = RewardConfig(format={"role": "added"})
    samples = [sample(finish=Finish.LENGTH), sample()]
    overlong = {"overlong": np.array([-1.0, -0.9])}
    assert totals(samples, [1, 1], [1, 1], config, overlong) == pytest.approx([-1.0, 2.1])
    masked = config.model_copy(update={"truncated": "mask"})
    assert same(totals(samples, [1, 1], [1, 1], masked, {"overlong": np.array([-1.0, 0.0])}), [NAN, 3])


def test_penalties_alone_do_not_bring_back_what_left(sample):
    """Of a group without gold, with the rationale alone rewarded, only penalties are left."""
    config = RewardConfig(combination="rationale_only", truncated="mask")
    samples = [sample(hint=None), sample(hint=None, finish=Finish.LENGTH), sample("", Finish.ERROR, hint=None)]
    assert same(totals(samples, [NAN] * 3, [NAN] * 3, config, {"p": np.array([-1.0] * 3)}), [-1, NAN, NAN])


@pytest.mark.parametrize(
    ("form", "finish", "hint", "more", "outcome", "rationale"),
    [
        ("good", Finish.STOP, "b", {}, True, True),
        ("leak", Finish.STOP, "b", {}, False, True),
        ("leak", Finish.STOP, "b", {"format": {"role": "none"}}, True, True),
        ("no reference", Finish.STOP, "b", {"format": {"role": "none"}}, True, False),
        ("good", Finish.STOP, None, {}, True, False),
        ("good", Finish.LENGTH, "b", {}, False, False),
        ("good", Finish.LENGTH, "b", {"truncated": "mask"}, False, False),
        ("good", Finish.LENGTH, "b", {"truncated": "score"}, True, True),
        ("good", Finish.ERROR, "b", {}, False, False),
        ("good", Finish.OVER_LENGTH, "b", {}, False, False),
        ("good", Finish.STOP, "b", {"combination": "outcome"}, True, False),
        ("good", Finish.STOP, "b", {"combination": "rationale_only"}, False, True),
        ("good", Finish.STOP, "b", {"combination": "rationale_only", "observe": True}, True, True),
    ],
)
def test_which_judges_are_asked(sample, form, finish, hint, more, outcome, rationale):
    config = RewardConfig(**more)
    asked = sample(FORMS[form], finish, config, hint=hint)
    assert (wants_outcome(asked, config), wants_rationale(asked, config)) == (outcome, rationale)


def test_a_truncated_completion_does_not_bring_an_absent_term_back(sample):
    config = RewardConfig(combination="rationale_only")
    assert same(totals([sample(finish=Finish.LENGTH, hint=None)], [NAN], [NAN], config), [NAN])


@pytest.mark.parametrize("finish", [Finish.ERROR, Finish.OVER_LENGTH])
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_where_nothing_was_generated_there_is_no_reward(sample, finish, combination):
    config = config_of(combination, format={"role": "added"})
    assert same(totals([sample("", finish)], [0], [0], config, {"p": np.array([-1.0])}), [NAN])


def test_penalties_are_terms_of_their_own(sample):
    rewards = combine([sample()] * 2, np.ones(2), np.zeros(2), RewardConfig(), {"copied": np.array([0, -0.5])})
    assert rewards.names == ("outcome", "rationale", "copied")
    assert rewards.total_n.tolist() == [1, 0.5]
    assert rewards.weight_c.tolist() == [1, 1, 1]


def test_a_product_is_one_term(sample):
    rewards = combine([sample()], np.ones(1), np.full(1, 0.5), RewardConfig(combination="gated"))
    assert rewards.names == ("gated",)
    assert (rewards.outcome_n.tolist(), rewards.rationale_n.tolist()) == ([1], [0.5])


def test_weights_reach_the_advantages(sample):
    rewards = combine([sample()], np.ones(1), np.ones(1), config_of("weighted"))
    assert rewards.weight_c.tolist() == [2.0, 0.5]
    assert rewards.reward_nc.tolist() == [[1, 1]], "unweighted: per-component normalisation comes first"


def test_inputs_are_left_alone(sample):
    outcome, rationale = np.ones(1), np.ones(1)
    combine([sample("")], outcome, rationale, RewardConfig())
    assert (outcome.tolist(), rationale.tolist()) == ([1], [1])


def test_what_is_not_used_is_shown_only_when_watched(sample):
    values = np.ones(1), np.full(1, 0.5)
    assert np.isnan(combine([sample()], *values, RewardConfig(combination="outcome")).rationale_n).all()
    watched = combine([sample()], *values, RewardConfig(combination="outcome", observe=True))
    assert watched.rationale_n.tolist() == [0.5]
    assert watched.total_n.tolist() == [1]


@pytest.mark.parametrize(
    ("outcome", "rationale", "says"),
    [
        ([1.5], [0], r"outcome: expected values in \[0, 1\] or nan; got 1.5"),
        ([0], [-0.1], "rationale: .* got -0.1"),
        ([0], [np.inf], "rationale: .* got inf"),
        ([0, 1], [0], r"outcome: expected 1 values; got shape \(2,\)"),
    ],
)
def test_values_out_of_range(sample, outcome, rationale, says):
    with pytest.raises(ValueError, match=says):
        combine([sample()], np.array(outcome), np.array(rationale), RewardConfig())


def test_a_users_outcome_may_be_any_number_and_needs_no_answer(sample):
    config = RewardConfig(reward_fn="a:b", format={"role": "none"})
    no_answer = sample(FORMS["no answer"])
    assert totals([no_answer], [-3.5], [1], config) == [-2.5]
    assert wants_outcome(no_answer, config)
    assert not wants_outcome(no_answer, RewardConfig(format={"role": "none"}))
    with pytest.raises(ValueError, match="outcome: expected values that are finite or nan; got inf"):
        combine([no_answer], np.array([np.inf]), np.array([1]), config)


def test_no_samples():
    rewards = combine([], np.zeros(0), np.zeros(0), RewardConfig())
    assert rewards.total_n.shape == (0,)
    assert reduce(reward_metrics([], rewards, RewardConfig()))["reward/total"] is None


def test_values_of_verdicts():
    verdicts = [Verdict(True, "j"), Verdict(False, "j", score=0.25), Verdict(None, "j"), None]
    assert same(verdict_values(verdicts), [1, 0, NAN, NAN])
    assert same(verdict_values(verdicts, graded=True), [NAN, 0.25, NAN, NAN]), "a yes is no grade"


def test_metrics_count_states(sample):
    config = RewardConfig()
    samples = [
        sample(),
        sample(),
        sample(FORMS["no reference"]),
        sample(FORMS["leak"]),
        sample(hint=None),
        sample(finish=Finish.LENGTH),
        sample("", Finish.ERROR),
    ]
    outcome = np.array([1, NAN, NAN, NAN, 0, NAN, NAN])
    rationale = np.array([NAN, 1, NAN, 1, NAN, NAN, NAN])
    figures = reduce(reward_metrics(samples, combine(samples, outcome, rationale, config), config))
    expected = {
        "reward/total": (0 + 1 + 0 + 0) / 4,  # no reference, leak, no gold, truncated; three undefined
        "reward/outcome": 1 / 5,
        "reward/rationale": 2 / 4,
        "judge/outcome_unscored": 1 / 3,
        "judge/rationale_unscored": 1 / 3,
        "reference/no_gold": 1 / 7,
        "reference/present": 5 / 6,
        "reference/clipped": 0,
        "format/ok": 4 / 6,
        "format/no_thought": 0,
        "format/several_closes": 0,
        "format/no_answer": 0,
        "format/no_reference": 1 / 6,
        "format/tag_in_answer": 1 / 6,
        "sample/truncated": 1 / 6,
        "sample/void": 1 / 7,
        "sample/masked": 0,
    }
    assert figures == pytest.approx(expected, abs=1e-6)


# ----------------------------------------------------------------------------------------------------------------
# Any batch
# ----------------------------------------------------------------------------------------------------------------

VALUE = st.sampled_from([NAN, 0.0, 0.25, 1.0])
BATCH = st.lists(
    st.tuples(st.sampled_from(sorted(FORMS)), st.sampled_from(list(Finish)), st.booleans(), VALUE, VALUE),
    min_size=1,
    max_size=8,
)
CONFIG = st.builds(
    lambda combination, role, truncated, scope, observe: config_of(
        combination, format={"role": role}, truncated=truncated, reference={"scope": scope}, observe=observe
    ),
    st.sampled_from(COMBINATIONS),
    st.sampled_from(["gate", "added", "none"]),
    st.sampled_from(["zero", "score", "mask"]),
    st.sampled_from(["think", "both"]),
    st.booleans(),
)


def batch_of(rows, config):
    samples = [
        read_sample(
            Case(
                "with" if gold else "without",
                "p",
                "q",
                ("4",),
                hint="b" if gold else None,
                instruction="Write it down.",
            ),
            FORMS[form],
            finish,
            config,
        )
        for form, finish, gold, _, _ in rows
    ]
    return samples, np.array([r[3] for r in rows]), np.array([r[4] for r in rows])


@given(rows=BATCH, config=CONFIG, filler=st.tuples(VALUE, VALUE))
def test_what_need_not_be_asked_changes_nothing(rows, config, filler):
    samples, outcome, rationale = batch_of(rows, config)
    needless_o = np.array([not wants_outcome(s, config) for s in samples])
    needless_r = np.array([not wants_rationale(s, config) for s in samples])
    other = np.where(needless_o, filler[0], outcome), np.where(needless_r, filler[1], rationale)
    left, right = combine(samples, outcome, rationale, config), combine(samples, *other, config)
    for name in ("total_n", "reward_nc", "applies_nc", "masked_n", "outcome_n", "rationale_n"):
        assert same(getattr(left, name), getattr(right, name)), name


@given(rows=BATCH, config=CONFIG)
def test_a_reward_is_undefined_for_a_reason_only(rows, config):
    samples, outcome, rationale = batch_of(rows, config)
    rewards = combine(samples, outcome, rationale, config)
    for i, sample in enumerate(samples):
        missing = (wants_outcome(sample, config) and np.isnan(outcome[i])) or (
            wants_rationale(sample, config) and np.isnan(rationale[i])
        )
        nothing = sample.case.gold is None and config.combination == "rationale_only" and config.format.role != "added"
        if not (missing or nothing or sample.void or rewards.masked_n[i]):
            assert np.isfinite(rewards.total_n[i])
        if nothing or sample.void or rewards.masked_n[i]:
            assert np.isnan(rewards.total_n[i])


@given(rows=BATCH, config=CONFIG, data=st.data())
def test_order_does_not_matter(rows, config, data):
    order = data.draw(st.permutations(range(len(rows))))
    straight = combine(*batch_of(rows, config), config).total_n
    assert same(straight[list(order)], combine(*batch_of([rows[i] for i in order], config), config).total_n)


@given(rows=BATCH, config=CONFIG)
def test_the_advantages_see_the_same_total(rows, config):
    """Adding the terms there is adding them here, and a term is absent for a whole group or for none of it."""
    samples, outcome, rationale = batch_of(rows, config)
    rewards = combine(samples, outcome, rationale, config)
    groups = [s.case.id for s in samples]
    by_terms = advantages(
        rewards.reward_nc,
        groups,
        AdvantageConfig(),
        weight_c=rewards.weight_c,
        applies_nc=rewards.applies_nc,
    )
    by_total = advantages(rewards.total_n, groups, AdvantageConfig())
    assert by_terms.defined_n.tolist() == by_total.defined_n.tolist()
    np.testing.assert_allclose(by_terms.advantage_n, by_total.advantage_n, atol=1e-6)
