"""Several runs from one file: which there are, in what order, where they lie, and what happens when one fails."""

import json
import math

import pytest

from noisyjax.config import ModelPreset, identity, load
from noisyjax.config.preset import PresetSampling
from noisyjax.errors import NoisyjaxError, RunError, UsageError
from noisyjax.evaluate import EvalConfig, evaluate_all, load_runs
from noisyjax.evaluate import run as room
from noisyjax.interrupts import Stopped
from noisyjax.models import param_specs
from noisyjax.models.errors import ShardingError
from noisyjax.models.sharding import SERVING, partition_specs
from noisyjax.tpu.names import parse_accelerator

SWEEP = """
name: ignored
out: top/
engine: {kind: local, model: "models/{size}"}
sampling: {max_tokens: 64}
axes:
  size:
    small: {}
    large: {engine: {slots: 2}}
    api: {engine: {kind: remote, base_url: http://localhost/v1, model: "x-{size}"}}
  method:
    none: {}
    cic: {bench: {prompting: cic}}
skip:
  - {size: api, method: cic}
"""


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def test_runs_are_the_combinations_in_the_order_of_the_file(sweep):
    runs = load_runs(sweep)
    assert [r.name for r in runs] == ["small/none", "small/cic", "large/none", "large/cic", "api/none"]
    assert [r.out for r in runs] == [f"top/{r.name}" for r in runs]
    assert [str(r.engine.model) for r in runs] == ["models/small"] * 2 + ["models/large"] * 2 + ["x-api"]
    assert [r.bench.prompting for r in runs] == ["plain", "cic", "plain", "cic", "plain"]
    assert (runs[0].engine.slots, runs[2].engine.slots) == (8, 2)
    assert {r.sampling.max_tokens for r in runs} == {64}


def test_words_hold_for_every_run_and_win(sweep):
    runs = load_runs(sweep, ["out=gs://bucket/x", "engine.model=mine", "sampling.max_tokens=9", "shard=2/3"])
    assert {r.sampling.max_tokens for r in runs} == {9}
    assert {str(r.engine.model) for r in runs} == {"mine"}
    assert {r.shard for r in runs} == {"2/3"}
    assert runs[-1].out == "gs://bucket/x/api/none"


def test_values_and_skipped_runs_can_be_changed_by_words(sweep):
    runs = load_runs(sweep, ["axes.method.none.n=4", "skip=[{method: cic}]"])
    assert [(r.name, r.n) for r in runs] == [("small/none", 4), ("large/none", 4), ("api/none", 4)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_are_a_partition(sweep, count):
    shares = [load_runs(sweep, (), f"{i + 1}/{count}", "runs") for i in range(count)]
    assert sorted(r.name for share in shares for r in share) == sorted(r.name for r in load_runs(sweep))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert {r.shard for r in load_runs(sweep, (), f"1/{count}")} == {f"1/{count}"}  # by default of the questions


def test_a_config_without_axes_is_one_run(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text("name: one\nout: here\nengine: {kind: local, model: m}\n")
    (run,) = load_runs(path)
    assert (run.name, run.out) == ("one", "here")


@pytest.mark.parametrize(
    ("words", "shard", "expected"),
    [
        (["axes.extra={}"], None, "every axis a value"),
        (["axes.size.a b={}"], None, "not a b"),
        (["skip=[{sise: small}]"], None, "no axis 'sise'; did you mean 'size'?"),
        (["skip=[{size: smal}]"], None, "no value 'smal'; did you mean 'small'?"),
        (["skip=[{method: none}, {method: cic}]"], None, "every combination is left out"),
        (["out=runs/{sise}"], None, "out: there is no axis 'sise'; did you mean 'size'?"),
        (["axes.size.large.engine.slotz=3"], None, "run large/none: engine.slotz"),
        ([], "6/6", "shard 6/6 holds no run"),
        ([], "0/2", "a shard is i/n"),
        ([], "x", "a shard is i/n"),
        (["shard=1/2"], "1/2", "give one of them"),
    ],
)
def test_bad_input_names_the_place(sweep, words, shard, expected):
    with pytest.raises(UsageError) as caught:
        load_runs(sweep, words, shard, "runs" if shard else "questions")
    assert expected in str(caught.value)


@pytest.mark.parametrize("words", [[], ["shard=1/2"]])
def test_a_split_without_parts_is_refused(sweep, words):
    """Each machine would do all of it, or a part of the questions."""
    with pytest.raises(UsageError, match="--split runs says how the parts of --shard i/n are made"):
        load_runs(sweep, words, split="runs")


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (UsageError, ShardingError, UsageError),  # a job's engine is not to start it again: no start would do better
        (UsageError, RunError, RunError),
        (RunError, RunError, RunError),
    ],
)
def test_one_failing_run_keeps_no_other_from_running(sweep, monkeypatch, first, second, told):
    ran, fails = [], {"large/none": first("no such folder"), "large/cic": second("gone away")}

    def fake(config):
        ran.append(config.name)
        if config.name in fails:
            raise fails[config.name]

    monkeypatch.setattr(room, "evaluate", fake)
    with pytest.raises(NoisyjaxError) as caught:
        evaluate_all(load_runs(sweep))
    assert len(ran) == 5
    assert type(caught.value) is told
    assert str(caught.value).splitlines() == [
        "2 of 5 runs failed",
        "  large/none: no such folder",
        "  large/cic: gone away",
    ]


@pytest.mark.parametrize("error", [Stopped(15), ZeroDivisionError("a bug")])
def test_a_stop_and_a_bug_end_the_sweep_at_once(sweep, monkeypatch, error):
    ran = []

    def fake(config):
        ran.append(config.name)
        raise error

    monkeypatch.setattr(room, "evaluate", fake)
    with pytest.raises(type(error)):
        evaluate_all(load_runs(sweep))
    assert len(ran) == 1


def test_a_single_run_fails_with_its_own_error(sweep, monkeypatch):
    def fake(config):
        raise UsageError("no such folder")

    monkeypatch.setattr(room, "evaluate", fake)
    with pytest.raises(UsageError, match=r"^no such folder$"):
        evaluate_all(load_runs(sweep, (), "1/5", "runs"))


# -- the files that come with the package --------------------------------------------------------------------------


def test_table_1_is_the_papers_seven_models(shared_data):
    rows = json.loads((shared_data.parent / "spec" / "paper_tables.json").read_text())["rows"]
    papers = list(dict.fromkeys(row["model"] for row in rows if row["table"] == 1))
    runs = load_runs("sweeps/table1")
    assert sorted(r.name for r in runs) == sorted(papers)
    assert [r.name for r in runs if r.engine.kind == "remote"] == [
        "Gemini-2.5-Pro",
        "Gemini-2.5-Flash",
        "DeepSeek-R1-0528",
    ]
    assert {r.bench.settings for r in runs} == {("ND", "RD", "RC", "HN")}
    assert {len(r.bench.datasets) for r in runs} == {11}


def test_table_2_is_models_by_methods_by_thinking(shared_data):
    rows = json.loads((shared_data.parent / "spec" / "paper_tables.json").read_text())["rows"]
    papers = {row["model"] for row in rows if row["table"] == 2}
    runs = load_runs("sweeps/table2")
    cells = [r.name.split("/") for r in runs]
    assert {cell[0] for cell in cells} == papers
    methods = ["none", "prompting", "sft", "or", "or_rare"]
    for model in papers:
        switches = ["on"] if model.startswith("DeepSeek") else ["on", "off"]
        assert [c[1:] for c in cells if c[0] == model] == [[m, s] for m in methods for s in switches]
    by_name = {r.name: r for r in runs}
    assert by_name["Qwen3-4B/none/off"].template_kwargs == {"enable_thinking": False}
    assert by_name["Qwen3-4B/prompting/on"].bench.prompting == "cic"
    assert str(by_name["Qwen3-4B/or_rare/on"].engine.model) == "weights/trained/Qwen3-4B-or_rare"
    assert len({r.out for r in runs}) == len(runs) == 25


TABLES = ("sweeps/table1", "sweeps/table2", "sweeps/model_size")
LOCAL = {(r.preset, r.engine.mesh.devices): r for name in TABLES for r in load_runs(name) if r.engine.kind == "local"}


def test_models_are_sampled_as_their_makers_say():
    for name in TABLES:
        for run in load_runs(name):
            assert run.sampling.temperature is not None
            if run.engine.kind == "remote":
                continue
            assert run.preset == run.name.split("/")[0]
            makers = load(ModelPreset, run.preset)
            if run.template_kwargs.get("enable_thinking", True):
                assert run.sampling.model_dump(include={*PresetSampling.model_fields}) == makers.sampling.model_dump()
            assert makers.template_kwargs.keys() <= run.template_kwargs.keys()


@pytest.mark.parametrize("run", LOCAL.values(), ids=lambda run: run.name)
def test_models_have_room_on_the_machine_that_the_head_names(run):
    """Weights, a window of 65,536 tokens for each slot, and as much again for a prompt that is being read."""
    cfg, machine = load(ModelPreset, run.preset).decoder_config(quantised=True), parse_accelerator("v6e-8")
    axes = run.engine.mesh.filling(machine.devices).axes
    assert math.prod(axes.values()) == machine.devices == machine.host.devices
    cuts = partition_specs(cfg, axes, SERVING)
    weights = 0.0
    for path, spec in param_specs(cfg).items():
        parts = math.prod(axes[axis] for axis in cuts[path] if axis)
        weights += math.prod(spec.shape) * (1 if spec.packed else 2) / parts
    assert cfg.n_kv_heads % axes["tensor"] == 0
    tokens = min(cfg.max_positions, 65_536)
    row = tokens * cfg.n_layers * 2 * cfg.n_kv_heads * cfg.head_dim * 2 / axes["tensor"]
    slots = -(-run.engine.slots * axes["tensor"] // machine.devices)
    assert weights + (slots + 1) * row < 0.95 * machine.generation.hbm_bytes, f"{weights / 2**30:.1f} GiB, {slots} rows"


@pytest.mark.parametrize(
    ("words", "sampling", "told"),
    [
        ([], (0.6, 0.95, 20), {}),
        (["sampling.temperature=0.2", "sampling.max_tokens=9"], (0.2, 0.95, 20), {}),
        (["preset=gpt-oss-20b"], (1.0, 1.0, 0), {"reasoning_effort": "medium"}),
        (["preset=gpt-oss-20b", "template_kwargs.reasoning_effort=low"], (1.0, 1.0, 0), {"reasoning_effort": "low"}),
        (["preset=gpt-oss-20b", "engine={kind: remote, base_url: http://h/v1, model: m}"], (1.0, 1.0, 0), {}),
    ],
)
def test_a_preset_says_what_the_config_does_not(words, sampling, told):
    config = load(EvalConfig, None, ["engine={kind: local, model: m}", "preset=Qwen3-4B", *words])
    assert (config.sampling.temperature, config.sampling.top_p, config.sampling.top_k) == sampling
    assert config.template_kwargs == told
    assert identity(config)["sampling"]["temperature"] == sampling[0]
    assert "preset" not in identity(config)


def test_a_preset_that_is_none():
    with pytest.raises(UsageError, match="did you mean 'Qwen3-4B'"):
        load(EvalConfig, None, ["engine={kind: local, model: m}", "preset=Qwen3-4"])
