from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from noisyjax.config import load, to_yaml
from noisyjax.engine.remote import Price, RemoteConfig
from noisyjax.errors import UsageError

URL = "http://localhost:1/v1"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base_url": "localhost:8000/v1"}, "http://"),
        ({"base_url": "https://user:hunter2@host/v1"}, "must not hold credentials"),
        ({"base_url": "https://host/v1?api_key=hunter2"}, "must not hold credentials"),
        ({"api_key_env": "sk-hunter2"}, "name of an environment variable"),
        ({"concurrency": 0}, "concurrency"),
        ({"retries": 3}, "retries"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_bad_settings_are_refused_and_secrets_not_repeated(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        RemoteConfig(**{"base_url": URL, "model": "m"} | change)
    assert "hunter2" not in str(caught.value)


def test_a_pasted_key_is_not_repeated_by_the_config_loader(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"base_url: {URL}\nmodel: m\napi_key_env: sk-hunter2\n")
    with pytest.raises(UsageError) as caught:
        load(RemoteConfig, file)
    assert "name of an environment variable" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_key_comes_from_the_environment_and_stays_out_of_the_resolved_config() -> None:
    config = RemoteConfig(base_url=URL, model="m", api_key_env="SOME_KEY")
    assert config.api_key({"SOME_KEY": " hunter2\n"}) == "hunter2"
    assert "hunter2" not in to_yaml(config) + repr(config)
    assert RemoteConfig(base_url=URL, model="m").api_key({"OPENAI_API_KEY": "hunter2"}) is None
    with pytest.raises(UsageError, match="SOME_KEY is not set"):
        config.api_key({"SOME_KEY": ""})


def test_cost_by_hand() -> None:
    assert Price(input=2.0, output=10.0).cost(1_000_000, 100_000, 500_000) == pytest.approx(3.0)
    assert Price(input=2.0, output=10.0, cached_input=0.5).cost(1_000_000, 100_000, 500_000) == pytest.approx(2.25)


def test_price_tables(tmp_path: Path) -> None:
    table = tmp_path / "mine.yaml"
    table.write_text("some/model-1: {input: 1.5, output: 3}\n")
    ask = {"base_url": URL, "prices": str(table)}
    assert RemoteConfig(model="some/model-1", **ask).price() == Price(input=1.5, output=3.0)
    assert RemoteConfig(model="another", **ask).price() is None
    assert RemoteConfig(base_url=URL, model="some/model-1").price() is None
    assert RemoteConfig(base_url=URL, model="echo", prices="prices").price() == Price(input=0, output=0)
    table.write_text("some/model-1: {input: -1, output: 3}\n")
    with pytest.raises(UsageError, match=r"some/model-1\.input"):
        RemoteConfig(model="some/model-1", **ask).price()
