"""Every wrong config gets one readable message that names the key, the place and what to do."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SecretStr, model_validator

from noisyjax.config import Schema, config_hash, differences, find_config, identity, load, to_yaml
from noisyjax.config.tree import merge, parse_overrides, parse_yaml
from noisyjax.errors import UsageError


class Local(Schema):
    kind: Literal["local"] = "local"
    model: str
    slots: int = Field(8, ge=1, json_schema_extra={"affects_results": False})


class Remote(Schema):
    kind: Literal["remote"] = "remote"
    base_url: str
    api_key: SecretStr | None = None
    headers: dict[str, str] = Field(default_factory=dict)


class Config(Schema):
    name: str
    settings: tuple[Literal["ND", "RD", "RC", "HN"], ...] = ("ND",)
    temperature: float = 0.0
    limit: int | None = None
    engine: Annotated[Local | Remote, Field(discriminator="kind")]

    @model_validator(mode="after")
    def _named(self) -> "Config":
        if self.name == "bad":
            raise ValueError("the name 'bad' is taken")
        return self


GOOD = "name: a\nengine:\n  kind: local\n  model: m\n"


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str, name: str = "c.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def problem(path, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(Config, path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_file_and_overrides(write):
    config = load(Config, write(GOOD), ["engine.slots=3", "settings=[ND, HN]", "temperature=1e-1", "limit="])
    assert config.engine.slots == 3
    assert config.settings == ("ND", "HN")
    assert config.temperature == 0.1
    assert config.limit is None


def test_unknown_key_names_nearest_and_line(write):
    text = problem(write(GOOD + "  slotz: 4\n"))
    assert "engine.slotz" in text
    assert "c.yaml:5" in text
    assert "did you mean 'slots'?" in text
    # the other kind's keys are no help here
    assert "base_url" not in problem(write(GOOD + "  qqqq: 4\n"))


def test_unknown_override_names_the_word(write):
    assert "'tempurature=1'" in problem(write(GOOD), "tempurature=1")


def test_wrong_type_says_what_was_given_and_expected(write):
    text = problem(write(GOOD), "temperature=hot")
    assert "temperature ('temperature=hot')" in text
    assert "expected a valid number" in text
    assert "got 'hot' (text)" in text
    assert "greater than or equal to 1" in problem(write(GOOD), "engine.slots=0")


def test_union_alternatives_share_a_line(write):
    text = problem(write(GOOD), "limit=many")
    assert text.count("limit") == 2  # the key and the word that set it
    assert "\n" not in text


def test_choice_names_nearest(write):
    text = problem(write(GOOD), "settings=[ND, RDD]")
    assert "settings.1" in text
    assert "expected one of ND, RD, RC, HN" in text
    assert "did you mean 'RD'" in text
    assert "did you mean 'local'" in problem(write(GOOD.replace("kind: local", "kind: locl")))


def test_missing_key_and_many_errors_at_once(write):
    text = problem(write("engine: {kind: local}\nfoo: 1\ntemperature: x\n"))
    assert "4 problems" in text
    assert len(text.splitlines()) == 5
    assert "engine.model" in text
    assert "name: required, but missing" in text
    assert "the key 'kind' is missing" in problem(write("name: a\nengine: {model: m}\n"))


def test_validator_text_is_passed_on(write):
    assert "the name 'bad' is taken" in problem(write(GOOD), "name=bad")


def test_missing_file_names_nearest(write, tmp_path):
    write(GOOD, "smollm.yaml")
    assert "smollm.yaml" in problem(tmp_path / "smolm.yaml")
    assert "is a folder" in problem(tmp_path)


def test_broken_yaml_has_a_line(write):
    assert "c.yaml:3: not valid YAML" in problem(write("name: a\nengine: {kind: [\n"))
    assert "'name' is given twice" in problem(write("name: a\nname: b\n"))
    assert "mapping" in problem(write("- 1\n"))
    assert "unacceptable character #x0007" in problem(write("name: a\x07\n"))
    assert "unacceptable character #x0007" in problem(write(GOOD), "name=\x07")


@pytest.mark.parametrize("word", ["temperature", "=1", "a..b=1", ".a=1"])
def test_bad_override(write, word):
    assert "is not an override" in problem(write(GOOD), word)


def test_yaml_scalars_are_what_they_look_like():
    data, _ = parse_yaml("[no, on, 1:30, 2025-01-01, 1e-6, 010, -3, true, ~, .5, 1_000]", "x")
    assert data == ["no", "on", "1:30", "2025-01-01", 1e-6, "010", -3, True, None, 0.5, "1_000"]


def test_extends(write):
    write(GOOD + "temperature: 0.6\n", "base.yaml")
    child = write("extends: base.yaml\nengine: {slots: 2}\n", "child.yaml")
    config = load(Config, child)
    assert (config.engine.model, config.engine.slots, config.temperature) == ("m", 2, 0.6)
    loop = write("extends: loop.yaml\n", "loop.yaml")
    assert "circle" in problem(loop)
    assert "base.yaml" in problem(write("extends: bsae.yaml\n", "typo.yaml"))
    assert "did you mean 'sweeps/quickstart'?" in problem("sweeps/quickstrat")
    assert "did you mean 'quickstart'?" in problem("quickstrat")


def test_any_mapping_may_extend_a_file(write, tmp_path):
    write("kind: local\nmodel: tiny\nslots: 3\n", "tiny.yaml")
    config = load(Config, write("name: a\nengine: {extends: tiny.yaml, slots: 4}\n"))
    assert (config.engine.model, config.engine.slots) == ("tiny", 4)
    config = load(Config, None, ["name=a", f"engine.extends={tmp_path}/tiny.yaml", "engine.slots=5"])
    assert (config.engine.model, config.engine.slots) == ("tiny", 5)
    write("kind: local\nmodel: tiny\nslotz: 3\n", "typo.yaml")
    assert "engine.slotz (typo.yaml:3)" in problem(write("name: a\nengine: {extends: typo.yaml}\n"))
    write("engine: {extends: round.yaml}\n", "round.yaml")
    assert "circle" in problem(tmp_path / "round.yaml")


def test_changing_the_kind_replaces_the_engine(write):
    config = load(Config, write(GOOD), ["engine.base_url=http://h/v1", "engine.kind=remote"])
    assert isinstance(config.engine, Remote)


def test_secrets_never_appear(write):
    config = load(
        Config,
        write(GOOD),
        [
            "engine={kind: remote, api_key: hunter2, headers: {Authorization: hunter2, x-a: b}}",
            "engine.base_url=http://me:hunter2@h/v1",
        ],
    )
    text = to_yaml(config)
    assert "hunter2" not in text
    assert "(hidden)@h/v1" in text
    assert "x-a: b" in text
    assert "hunter2" not in str(identity(config))


def test_resolved_config_loads_back(write):
    config = load(Config, write(GOOD), ["settings=[HN]"])
    assert load(Config, write(to_yaml(config), "again.yaml")) == config


def test_hash_ignores_what_cannot_change_results(write):
    base = load(Config, write(GOOD))
    assert config_hash(base) == config_hash(load(Config, write(GOOD), ["engine.slots=1"]))
    other = load(Config, write(GOOD), ["temperature=0.5"])
    assert config_hash(base) != config_hash(other)
    assert differences(identity(base), identity(other)) == ["temperature: was 0.0, now 0.5"]


def test_every_packaged_config_is_found_by_its_bare_name():
    with pytest.raises(UsageError, match="neither a file nor a packaged one"):
        find_config("no_such_config_at_all")


_TREES = st.recursive(
    st.integers() | st.text("ab", max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda t: isinstance(t, dict))


@given(_TREES, _TREES)
def test_merge_prefers_the_second_and_keeps_the_rest(base, over):
    out = merge(base, over)
    assert set(out) == set(base) | set(over)
    assert merge(out, over) == out
    for key, value in over.items():
        if not isinstance(value, dict):
            assert out[key] == value


def test_overrides_of_one_mapping_add_up():
    tree, origins = parse_overrides(["a.b=1", "a={c: 2}", "a.d.e=x"])
    assert tree == {"a": {"b": 1, "c": 2, "d": {"e": "x"}}}
    assert origins["a", "d", "e"] == "'a.d.e=x'"
    with pytest.raises(UsageError, match="goes inside 'a'"):
        parse_overrides(["a=1", "a.b=2"])
