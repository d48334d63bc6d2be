"""What holds for the rewards of every batch, whatever its completions, verdicts and config."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from totals import COMBINATIONS, FORMS, NAN, config_of, same

from noisyjax.records import Finish
from noisyjax.train.objective.advantages import advantages
from noisyjax.train.objective.config import AdvantageConfig
from noisyjax.train.rewards.samples import Case, read_sample
from noisyjax.train.rewards.total import combine, wants_outcome, wants_rationale

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
