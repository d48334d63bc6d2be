"""Names of draws: whatever records are called, no two draws of a step share a name, and so no random numbers."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from noisyjax.train.rollout import draw_name


@given(st.lists(st.text("a#12", max_size=5), max_size=30))
def test_no_two_draws_share_a_name(records):
    times = Counter()
    names = []
    for record in records:
        times[record] += 1
        names.append(draw_name(record, times[record]))
    assert len(set(names)) == len(records)


def test_a_record_drawn_once_keeps_its_own_name():
    assert draw_name("r7", 1) == "r7"
