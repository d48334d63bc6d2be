import json
from datetime import date

import numpy as np
import pytest

from noisyjax.chat import ChatTokenizer
from noisyjax.errors import UsageError

PLAIN = [
    "hello world",
    "The quick brown fox\n\nDocument 1: it's 1,234",
    "naïve café 日本語\n \n x",
    "  two  spaces ",
    "a\n\n\nb",
]


def test_plain_text_keeps_the_models_own_tokenisation(tokenizer: ChatTokenizer):
    for text in PLAIN:
        want = tokenizer.hf(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode_plain(text).tolist() == want
        assert tokenizer.encode_plain(text).dtype == np.int32


def test_lone_surrogates_are_replaced_and_offsets_stay(tokenizer: ChatTokenizer):
    run, same = (tokenizer.encode_run(f"a {odd} b{odd}", first=False) for odd in ("\ud800", "\ufffd"))
    for ours, wanted in zip(run, same, strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_quoted_control_tokens_become_ordinary_tokens(tokenizer: ChatTokenizer):
    unknown = tokenizer.hf.unk_token_id  # what has no token at all is unknown, which controls nothing
    control_ids = {c.id for c in tokenizer.controls.values()} - {unknown}
    assert len(control_ids) >= 3
    for text in set(tokenizer.controls) - {tokenizer.hf.unk_token}:
        document = f"he wrote {text}{text} and then\n{text}"
        normal = tokenizer.hf(document, add_special_tokens=False)["input_ids"]
        assert control_ids.intersection(normal), "the plain call does make it a control token: the fault is real"
        ids = tokenizer.encode_plain(document)
        assert not control_ids.intersection(ids.tolist())
        if tokenizer.hf.unk_token is None:  # the sentencepiece style has no byte for "<" or "|"
            assert tokenizer.decode(ids) == document


def test_added_tokens_that_are_not_special_are_control_tokens_too(tokenizers):
    tokenizer = tokenizers["qwen3"]
    think = tokenizer.backend.token_to_id("<think>")
    assert not tokenizer.controls["<think>"].special
    assert think in tokenizer.hf("<think>", split_special_tokens=True)["input_ids"], (
        "the library's switch is not enough"
    )
    assert think not in tokenizer.encode_plain("a <think> b")


def test_whitespace_tokens_are_text(tokenizers):
    tokenizer = tokenizers["sentencepiece"]
    row = tokenizer.backend.token_to_id("\n\n\n")
    assert "\n\n\n" not in tokenizer.controls
    assert row in tokenizer.encode_plain("a\n\n\nb")


def test_plain_words_among_the_added_tokens_are_text(tmp_path, folders):
    """Some tokenizers add letters or words that way; content keeps the model's own tokens for them."""
    tokenizer = ChatTokenizer.load(folders["qwen3"])
    row = len(tokenizer.backend.get_vocab())
    state = json.loads((folders["qwen3"] / "tokenizer.json").read_text())
    plain = {"special": False, "normalized": True, "lstrip": False, "rstrip": False, "single_word": False}
    state["added_tokens"] += [{**plain, "id": row, "content": "日本"}, {**plain, "id": row + 1, "content": "  "}]
    for file in folders["qwen3"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    tokenizer = ChatTokenizer.load(tmp_path)
    text = "a日本  fox 日"
    assert tokenizer.encode_plain(text).tolist() == tokenizer.hf(text, add_special_tokens=False)["input_ids"]
    assert {row, row + 1} <= set(tokenizer.encode_plain(text).tolist())


def test_a_word_of_the_vocabulary_that_is_a_control_token_is_not_looked_up_whole(tmp_path, folders):
    """`ignore_merges` takes a whole word from the vocabulary; a control token that is one word must not be there."""
    state = json.loads((folders["llama3"] / "tokenizer.json").read_text())
    state["model"]["vocab"]["PAD"] = 9000
    state["added_tokens"].append({**state["added_tokens"][-1], "id": 9000, "content": "PAD"})
    for file in folders["llama3"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    tokenizer = ChatTokenizer.load(tmp_path)
    assert tokenizer.controls["PAD"].id == 9000
    ids = tokenizer.encode_plain("PAD")
    assert 9000 not in ids
    assert tokenizer.decode(ids) == "PAD"


def test_a_control_token_that_plain_text_still_makes_is_refused(tmp_path, folders):
    state = json.loads((folders["qwen3"] / "tokenizer.json").read_text())
    vocab, merges = state["model"]["vocab"], state["model"]["merges"]
    vocab |= {"zz": 9001, "zzq": 9002}
    merges += [["z", "z"], ["zz", "q"]]
    state["added_tokens"].append({**state["added_tokens"][-1], "id": 9002, "content": "zzq", "special": True})
    for file in folders["qwen3"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(UsageError, match="turns the plain text 'zzq' into a control token"):
        ChatTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("style", "stops"),
    [
        ("qwen3", ["<|endoftext|>", "<|im_end|>"]),  # a list in the generation config
        ("llama3", ["<|end_of_text|>", "<|eot_id|>"]),  # the template's end of turn is in no config at all
        ("smol", ["<|im_end|>"]),
        ("sentencepiece", ["</s>"]),  # no generation config
    ],
)
def test_stop_ids_are_the_union_of_all_sources(tokenizers, style, stops):
    tokenizer = tokenizers[style]
    assert set(tokenizer.stop_ids) == {tokenizer.backend.token_to_id(s) for s in stops}


def test_config_json_is_asked_when_there_is_no_generation_config(tmp_path, folders):
    for file in folders["qwen3"].iterdir():
        if file.name != "generation_config.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "eos_token_id": 7}')
    assert 7 in ChatTokenizer.load(tmp_path).stop_ids
    (tmp_path / "generation_config.json").write_text("{not json")
    with pytest.raises(UsageError, match=r"generation_config\.json is not valid JSON"):
        ChatTokenizer.load(tmp_path)


def test_bos(tokenizers):
    assert (tokenizers["qwen3"].bos_id, tokenizers["qwen3"].adds_bos) == (None, False)
    assert tokenizers["llama3"].adds_bos
    assert tokenizers["sentencepiece"].adds_bos
    assert tokenizers["smol"].bos_id == 1
    assert not tokenizers["smol"].adds_bos


def test_rows_that_no_token_stands_for_are_masked(tokenizer: ChatTokenizer):
    known = len(tokenizer.backend.get_vocab(with_added_tokens=True))
    mask = tokenizer.decodable_vocab(known + 37)
    assert mask.shape == (known + 37,)
    assert mask[:known].all()
    assert not mask[known:].any()
    assert tokenizer.decodable_vocab(known - 5).sum() == known - 5


def test_decode_leaves_out_special_tokens_but_not_thought_tags(tokenizers):
    tokenizer = tokenizers["qwen3"]
    token = tokenizer.backend.token_to_id
    ids = [token("<think>"), *tokenizer.encode_plain("hm"), token("</think>"), *tokenizer.encode_plain("4 .")]
    assert tokenizer.decode([*ids, token("<|im_end|>")]) == "<think>hm</think>4 ."
    assert tokenizer.decode_raw([*ids, token("<|im_end|>")]) == "<think>hm</think>4 .<|im_end|>"


def test_thought_markers_of_harmony_survive_decoding(tmp_path, folders):
    """gpt-oss marks its channels with special tokens; without them the final channel could not be found."""
    from transformers import PreTrainedTokenizerFast

    hf = PreTrainedTokenizerFast.from_pretrained(folders["smol"])
    names = ["<|start|>", "<|end|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|return|>"]
    hf.add_special_tokens({"additional_special_tokens": names})
    hf.save_pretrained(tmp_path)
    tokenizer = ChatTokenizer.load(tmp_path)
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>"
    said = tokenizer.decode(tokenizer.hf(text)["input_ids"])
    thoughts = tokenizer.split_thought(said, opened_by_prompt=False)
    assert (thoughts.thought, thoughts.answer) == ("hm", "4")


def test_a_digit_behind_a_control_token_stays(tokenizer: ChatTokenizer):
    """Control tokens are numbered inside; the number of one is not to be completed by the text."""
    for text in [str(i) for i in range(len(tokenizer.controls) + 1)]:
        assert tokenizer.decode_raw(tokenizer.encode_run(text, first=False).ids).strip() == text


def test_cutting_at_line_starts_is_only_allowed_where_it_changes_nothing(tokenizers):
    assert {n: t.cuttable for n, t in tokenizers.items()} == {
        "qwen3": True, "llama3": True, "smol": True, "sentencepiece": False,
    }  # fmt: skip


def test_count_tokens(tokenizer: ChatTokenizer):
    assert tokenizer.count_tokens("") == 0
    assert tokenizer.count_tokens("The quick brown fox") == len(
        tokenizer.encode_run("The quick brown fox", first=False).ids
    )


def test_dates_in_templates_stand_still(with_template):
    template = "{{ strftime_now('%d %b %Y') }} {{ strftime_now(\"%Y-%m-%d\") }}|{{ messages[0].content }}"
    tokenizer = with_template("qwen3", template)
    assert tokenizer.render_text([{"role": "user", "content": "x"}]) == "26 Jul 2024 2024-07-26|x"


def test_date_can_be_chosen(folders, tmp_path):
    (tmp_path / "t.jinja").write_text("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}")
    tokenizer = ChatTokenizer.load(folders["qwen3"], tmp_path / "t.jinja", today=date(2031, 1, 2))
    assert tokenizer.render_text([{"role": "user", "content": "x"}]) == "2031"


def test_no_chat_template_says_how_to_give_one(tmp_path, folders):
    for file in folders["qwen3"].iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UsageError, match="chat_template=FILE"):
        ChatTokenizer.load(tmp_path)
    for_counting = ChatTokenizer.load(tmp_path, require_template=False)
    assert for_counting.count_tokens("hello world") > 0
    with pytest.raises(UsageError, match="chat_template=FILE"):
        for_counting.render_text([{"role": "user", "content": "x"}])


def test_missing_folder_and_files_are_one_readable_line(tmp_path, folders):
    with pytest.raises(UsageError, match="no model folder at"):
        ChatTokenizer.load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="cannot be read"):
        ChatTokenizer.load(tmp_path)
    with pytest.raises(UsageError, match=r"chat_template=.*nope\.jinja cannot be read"):
        ChatTokenizer.load(folders["qwen3"], tmp_path / "nope.jinja")
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(UsageError, match="cannot be read"):
        ChatTokenizer.load(tmp_path)


def test_template_syntax_errors_and_refusals_carry_the_templates_words(with_template):
    refusing = with_template("qwen3", "{{ raise_exception('System role not supported') }}")
    with pytest.raises(UsageError, match="System role not supported"):
        refusing.render_text([{"role": "user", "content": "x"}])
    broken = with_template("qwen3", "{% for m in messages %}")
    with pytest.raises(UsageError, match="refuses"):
        broken.render_text([{"role": "user", "content": "x"}])
