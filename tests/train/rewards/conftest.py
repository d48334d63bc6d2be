import sys
from pathlib import Path

import pytest

from noisyjax.records import Finish
from noisyjax.train.rewards.config import RewardConfig
from noisyjax.train.rewards.samples import Case, Sample, read_sample

sys.path.insert(0, str(Path(__file__).parent))

GOOD = "<think>Look. <reference>Mara holds the key.</reference> So 4.</think>4"


def _case(**parts) -> Case:
    known = {
        "id": "q1",
        "prompt": "Who holds the key? Write what helps inside reference tags.",
        "question": "Who holds the key?",
        "answers": ("Mara",),
        "hint": "Mara holds the key.",
        "instruction": "Write what helps inside reference tags.",
    }
    return Case(**(known | parts))


def _sample(
    completion: str = GOOD, finish: Finish = Finish.STOP, config: RewardConfig | None = None, **parts
) -> Sample:
    return read_sample(_case(**parts), completion, finish, config or RewardConfig())


@pytest.fixture(scope="session")
def case():
    """Makes a case; keywords replace its parts."""
    return _case


@pytest.fixture(scope="session")
def sample():
    """Makes a sample from a completion (a good one by default); keywords replace the case's parts."""
    return _sample
