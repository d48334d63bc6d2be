"""GRPO with the rationale reward on several processes: what one process with as many devices does, whatever happens.

The policy is the tiny world's start, which writes references; a second model on the same devices judges them.
"""

import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from noisyjax.models import ModelConfig, RopeConfig, init_params, save
from noisyjax.train.watch.log import read_metrics, read_samples
from noisyjax.world import puzzle, record, start_model

STEPS = 4
OF_A_SESSION = ("speed/", "seconds", "data/")
"""Figures that measure time, or count what a process has read."""
MESH = ("mesh.fsdp=4",)
VERDICTS = ("VERDICT:ĠYES", "VERDICT:ĠNO")
TEMPLATE = "{% for m in messages %}{{ '<|turn|>' + m.content }}{% endfor %}{{ '<|turn|>' }}"
SIGNS = {"1": 1.0, "4": -0.7, "7": 0.4, "8": -1.2, "9": 0.6}
"""What some digits have to say about a verdict: they stand in an item's texts and marks, not in the instruction."""


def write_judge(folder: Path) -> Path:
    """A model of one layer, made by hand: it says YES where the prompt's digits are above zero on average, NO where
    they are below, and ends. Every token is a byte but its verdicts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate([*alphabet, *VERDICTS])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|turn|>"])
    cfg = ModelConfig(
        family="qwen3",
        vocab_size=tokenizer.get_vocab_size(),
        d_model=16,
        n_layers=1,
        n_heads=2,
        n_kv_heads=2,
        head_dim=8,
        d_ff=16,
        rope=RopeConfig(),
        norm_eps=1e-6,
        tie_embeddings=False,
        qk_norm=True,
        max_positions=4096,
    )
    params = {path: np.array(x) for path, x in init_params(cfg, stddev=0.0).items()}
    yes, no, end = (tokenizer.token_to_id(text) for text in (*VERDICTS, "<|end|>"))
    always, sign, said, mean = range(4)
    embed_vd, head_vd = params["embed.w_vd"], params["head.w_vd"]
    embed_vd[:, always] = 1
    for digit, value in SIGNS.items():
        embed_vd[alphabet.index(digit), sign] = value
    embed_vd[[yes, no], said] = 100
    params["layers.attn.v_khd"][0, 0, 0, sign] = 1  # all scores are zero: the mean of what lies before
    params["layers.attn.o_dnh"][0, mean, 0, 0] = 1000
    head_vd[:, always] = -1
    head_vd[yes], head_vd[no] = np.eye(16)[mean], -np.eye(16)[mean]
    head_vd[end, said] = 10
    save({path: jax.numpy.asarray(x) for path, x in params.items()}, cfg, folder)
    hf = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    hf.chat_template = TEMPLATE
    hf.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The config that all runs here share; each has an `out` of its own. All rows and prompts have one shape."""
    home = tmp_path_factory.mktemp("hosts")
    rows = (record(puzzle(0, "grpo", 4 * i), "HN").row() for i in range(3 * STEPS))
    (home / "grpo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = {"kind": "local", "model": str(write_judge(home / "judge")), "slots": 4, "row": 2560, "min_prefix": 0}
    settings = {
        "model": str(start_model("sparse")),
        "steps": STEPS,
        "prompts": 3,
        "data": {
            "files": [str(home / "grpo.jsonl")],
            "prompt": {"position": "mixed", "ask_reference": False, "max_prompt_tokens": 64},
        },
        "rollout": {"samples": 2, "max_tokens": 16, "slots": 8, "chunk": 16, "temperature": 3.0},
        "judge": {"kind": "engine", "engine": {**judge, "offload": True}, "max_tokens": 16},
        "reward": {
            "combination": "additive",
            "reward_fn": "moments:varied",
            "reference": {"scope": "think"},
            "format": {"role": "none"},
            "truncated": "score",
        },
        "optimizer": {"learning_rate": 1e-3},
        "update": {"row_tokens": 128, "batch_tokens": 512, "pack": False},
        "state": {"every_steps": 1, "keep": 9},
        "log": {"samples": 6, "samples_every": 1, "tensorboard": False},
    }
    path = home / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="module")
def train(run, file):
    def start(out, *words, **how):
        return run("train", "grpo", file, f"out={out}", *words, **how)

    return start


@pytest.fixture(scope="module")
def alone(train, tmp_path_factory):
    """The run of one process that has all devices."""
    out = tmp_path_factory.mktemp("alone") / "run"
    (ended,) = train(out, *MESH, "judge.engine.mesh.data=2", devices=4)
    assert ended.code == 0, ended.cried
    verdicts = [row["rationale"] for row in read_samples(out) if row["rationale"]]
    assert {verdict["value"] for verdict in verdicts} == {True, False}, verdicts  # the judge was asked, and decided
    assert all(line["update/grad_norm"] > 0 for line in read_metrics(out))
    return out


def stored(out, step=STEPS):
    """All arrays of a checkpoint, by path, whatever devices wrote them."""
    import orbax.checkpoint as ocp

    reader, folder = ocp.PyTreeCheckpointer(), Path(out).absolute() / "checkpoints" / str(step) / "tree"
    as_numpy = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(folder).item_metadata.tree
    )
    tree = reader.restore(folder, restore_args=as_numpy)
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def check_equal(out, alone):
    """The same samples, verdicts, rewards and advantages; the same weights and moments to rounding."""
    mine, theirs = read_samples(out), read_samples(alone)
    assert [(row["step"], row["record"], row["sample"]) for row in mine] == [
        (row["step"], row["record"], row["sample"]) for row in theirs
    ]
    for name in ("completion", "answer", "references", "outcome", "rationale", "rewards", "advantage"):
        assert [row[name] for row in mine] == [row[name] for row in theirs], name
    for line, other in zip(read_metrics(out), read_metrics(alone), strict=True):
        line, other = ({n: x for n, x in d.items() if not n.startswith(OF_A_SESSION)} for d in (line, other))
        assert line.keys() == other.keys()
        for name in line:
            np.testing.assert_allclose(line[name] or 0, other[name] or 0, atol=1e-5, rtol=1e-4, err_msg=name)
            assert (line[name] is None) == (other[name] is None)
    found, expected = stored(out), stored(alone)
    assert found.keys() == expected.keys()
    for path, x in expected.items():
        np.testing.assert_allclose(found[path], x, atol=1e-5, rtol=0, err_msg=path)


def check_left(ended, gone):
    """It ended because another host is gone, said so in one line, and nothing below it left a stack trace."""
    assert ended.code == 1, ended.cried
    last = ended.cried.strip().splitlines()[-1]
    assert last.startswith(f"noisyjax: host {gone} ("), ended.cried
    assert "is gone" in last
    check_quiet(ended)


def check_quiet(ended):
    for words in ("Traceback", "*** Check failure", "Fatal"):
        assert words not in ended.cried, ended.cried


@pytest.mark.slow
def test_two_processes_are_one(train, alone, tmp_path):
    out = tmp_path / "run"
    first, second = train(out, *MESH, "judge.engine.mesh.data=2", hosts=2, devices=2)
    assert (first.code, second.code) == (0, 0), first.cried + second.cried
    assert f"step {STEPS} is stored in {out}" in first.said
    assert (second.said, second.cried) == ("", "")  # one speaks
    check_equal(out, alone)
    first, second = train(out, *MESH, "judge.engine.mesh.data=2", hosts=2, devices=2)  # at another address
    assert (first.code, second.code) == (0, 0), first.cried + second.cried
    assert f"nothing was left to do: step {STEPS} is stored in {out}" in first.said


@pytest.mark.slow
def test_killed_and_stopped_and_gone_on_elsewhere(train, alone, tmp_path):
    """Two processes, until kill -9 takes the first where it judges; four, until one of them gets a SIGTERM in its
    rollout, and all store; one, to the end. Each on a mesh of its own."""
    out = tmp_path / "run"
    killed, left = train(out, *MESH, hosts=2, devices=2, moments={0: "SIGKILL judge 3"})
    assert killed.code == -signal.SIGKILL
    check_left(left, gone=0)
    four = train(out, "mesh.data=2", "mesh.fsdp=2", hosts=4, moments={3: "SIGTERM rollout 2"})
    done = 2 if "going on after step 1\n" in four[0].cried else 3  # the second checkpoint may not have been whole yet
    assert f"going on after step {done - 1}\n" in four[0].cried
    for one in four:
        assert one.code == 143, one.cried
        check_quiet(one)
        assert one.cried.strip().splitlines()[-1] == (
            f"noisyjax: stopped after step {done} of {STEPS}; it is stored in {out}. "
            "Run the same command again and it goes on from there."
        )
    assert not (out / "lock.json").exists()
    (again,) = train(out, "mesh.tensor=2", devices=2)
    assert again.code == 0, again.cried
    assert f"going on after step {done}\n" in again.cried
    check_equal(out, alone)


KILLED = """
import os, signal
from noisyjax.cli import main
from noisyjax.train.learner import Learner

Learner.update = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main()
"""
"""The command line, killed where it begins its first update."""


@pytest.mark.slow
def test_one_is_gone_while_the_other_is_in_the_update(train, tmp_path):
    """Devices that compute together wait for each other: the one that is left must not wait for ever."""
    left, killed = train(tmp_path / "run", *MESH, hosts=2, devices=2, programs={1: KILLED})
    assert killed.code == -signal.SIGKILL
    check_left(left, gone=1)


@pytest.mark.slow
def test_a_mesh_that_hosts_cannot_make(train, tmp_path):
    """All end, each with what happened."""
    says = "mesh takes 2 devices; 2 hosts have 4, and all of them train: mesh.fsdp=4 would do"
    for one in train(tmp_path / "run", "mesh.fsdp=2", hosts=2, devices=2):
        assert one.code == 2, one.cried
        assert says in one.cried
        check_quiet(one)
    assert not (tmp_path / "run").exists()


def test_a_host_that_never_joins(train, tmp_path):
    (ended,) = train(tmp_path / "run", *MESH, "hosts.join_s=1", hosts=2, devices=2, only=(0,))
    (line,) = ended.cried.strip().splitlines()
    assert ended.code == 1
    assert line.startswith("noisyjax: 1 of 2 hosts did not join within 1 s: host 1. Start the same command there")
    assert not (tmp_path / "run").exists()
