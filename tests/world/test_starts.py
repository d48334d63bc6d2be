"""The shipped starts belong to the world of this package."""

import json

import pytest

from noisyjax.models import read_config
from noisyjax.world import STARTS, make_tokenizer, model_config, start_model


@pytest.mark.parametrize("name", STARTS)
def test_a_start_has_the_worlds_architecture_and_words(name):
    assert read_config(start_model(name)) == model_config()
    tokenizer = json.loads((start_model(name) / "tokenizer.json").read_text())
    assert tokenizer["model"]["vocab"] == make_tokenizer().get_vocab()


def test_they_are_small_and_there():
    assert sum(p.stat().st_size for name in STARTS for p in start_model(name).iterdir()) < 8_000_000
