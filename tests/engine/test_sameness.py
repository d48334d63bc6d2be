"""In float32 a sample's tokens are a function of seeds and ids: not of slots, batch, mesh, order, chunk or sharing.

Where two runs differ, the two best scores at that place must lie within 1e-4 of each other (float32 may tell them
apart either way), which the oracle prints; what follows a near tie is compared no further.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from noisyjax.models.decoder import token_logprobs
from noisyjax.records import Request

SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.02}
HOW = ({}, SAMPLED, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.5})


@pytest.fixture(scope="module")
def requests(make_request) -> list[Request]:
    """Greedy and sampled, short and long, one and several samples, two families of prompts that begin alike."""
    made = [
        make_request(f"own{i}", length, seed=length, n=1 + i % 2, max_tokens=12 + i, **HOW[i % 4])
        for i, length in enumerate((1, 2, 40, 64, 65, 100, 300, 515))
    ]
    blocks = [make_request("", 200, seed=90 + b).prompt.ids for b in range(2)]
    for i, b in itertools.product(range(3), range(2)):
        made.append(make_request(f"like{b}{i}", [*blocks[b], 50 + i, 60], max_tokens=9 + 2 * i, **HOW[(i + b) % 4]))
    return made


@pytest.fixture(scope="module")
def base(make_engine):
    return make_engine(slots=8, min_prefix=0)


@pytest.fixture(scope="module")
def expected(base, requests, answers):
    return answers(base, requests)


@pytest.fixture(scope="module")
def same(base, requests, expected, oracle):
    """`same(done)`: fail unless the completions are the base engine's, up to near ties."""
    by_id = {r.id: r for r in requests}

    def check(done, keys=None):
        assert set(done) == set(keys or expected)
        near = 0
        for key, got in done.items():
            want = expected[key]
            differ = np.flatnonzero(got.ids != want.ids)
            upto = len(got.ids) if not differ.size else int(differ[0]) + 1
            if differ.size:
                near += 1
                scores = np.sort(oracle(base).scores(by_id[key[0]], key[1], want.ids)[upto - 1])
                print(f"{key} differs at token {upto - 1}: top-2 gap {scores[-1] - scores[-2]:.2e}")
                assert scores[-1] - scores[-2] < 1e-4, (key, upto - 1)
            np.testing.assert_allclose(got.logprobs[: upto - 1], want.logprobs[: upto - 1], atol=1e-4)
        print(f"{len(done)} completions, {near} near ties")
        assert near <= len(done) // 10  # near ties are rare: many of them would be a fault in disguise

    return check


def test_the_base_is_what_a_full_forward_pass_gives(base, requests, expected, oracle):
    for request in requests:
        for number in range(request.n):
            oracle(base).check(request, expected[request.id, number])
    assert len({tuple(c.ids) for c in expected.values()}) > len(expected) * 0.9


@pytest.mark.parametrize(
    "fields",
    [
        {"slots": 1},
        {"slots": 1, "guesses": 0},
        {"slots": 3, "chunk": 5},
        {"slots": 3, "chunk": 5, "guesses": 4, "min_prefix": 64},
        {"slots": 8, "chunk": 64, "stacked": True},
        {"slots": 8, "min_prefix": 64, "prefixes": 1},
    ],
    ids=lambda fields: " ".join(f"{k}={v}" for k, v in fields.items()),
)
def test_slots_chunks_layouts_and_sharing(make_engine, requests, answers, same, fields):
    same(answers(make_engine(**{"min_prefix": 0, **fields}), requests))


@pytest.mark.parametrize(
    ("mesh", "stacked", "guesses"),
    [({"data": 8}, False, 0), ({"fsdp": 4, "tensor": 2}, True, 2), ({"data": 2, "tensor": 4}, False, 0)],
    ids=["data=8", "fsdp=4 tensor=2 stacked, guessing", "data=2 tensor=4"],
)
def test_meshes(make_engine, requests, answers, same, mesh, stacked, guesses):
    """With tensor=4 the two kv heads are whole on every device, with tensor=2 they are cut."""
    same(answers(make_engine(slots=8, min_prefix=64, mesh=mesh, stacked=stacked, guesses=guesses), requests))


def test_order_and_company(base, requests, answers, same):
    same(answers(base, requests[::-1]))
    some = requests[3:5]
    same(answers(base, some), [(r.id, i) for r in some for i in range(r.n)])


def test_samples_one_by_one(base, requests, answers, same, make_request):
    """Four samples at once are those that four resumed requests draw, and prompts of equal text draw differently."""
    base_request = make_request("four", 70, n=4, max_tokens=12, **SAMPLED)
    together = answers(base, [base_request])
    for i in range(4):
        alone = answers(base, [dataclasses.replace(base_request, n=1, first_sample=i)])
        np.testing.assert_array_equal(alone["four", i].ids, together["four", i].ids)
    assert len({tuple(c.ids) for c in together.values()}) == 4
    for change in ({"seed": 12}, {"step": 1}, {"key": "other"}):
        other = answers(base, [dataclasses.replace(base_request, **change)])
        assert not np.array_equal(other["four", 0].ids, together["four", 0].ids)
    renamed = answers(base, [dataclasses.replace(base_request, id="name")])
    np.testing.assert_array_equal(renamed["name", 2].ids, together["four", 2].ids)  # the key counts, not the id


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trainer_log_probabilities(base, make_request, answers, temperature):
    """One full forward pass over prompt and completion, as a trainer does it, gives the sampler's numbers to 1e-3."""
    requests = [make_request(f"t{t}", t, seed=t, n=2, max_tokens=30, temperature=temperature) for t in (1, 33, 301)]
    worst = 0.0
    for key, done in answers(base, requests).items():
        prompt = next(r for r in requests if r.id == key[0]).prompt.ids
        whole = np.concatenate([prompt, done.ids])[None]
        trainer = token_logprobs(base.model, whole, base.valid_v, temperature)[0, len(prompt) - 1 :]
        worst = max(worst, float(np.abs(trainer - done.logprobs).max()))
    print(f"largest difference at temperature {temperature}: {worst:.1e}")
    assert worst < 1e-3
