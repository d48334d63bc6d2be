"""The tokenizer that a GGUF file's metadata describes, as tokenizer.json and tokenizer_config.json.

Byte-level BPE vocabularies (Qwen, Llama 3, SmolLM2) are rebuilt here with the `tokenizers` library, because how text is
cut before merging is named in the file (`tokenizer.ggml.pre`) and must be right: another cut gives other tokens.
SentencePiece vocabularies (Llama 2) go through transformers' own conversion.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from ..errors import UnknownArchitecture, UnsupportedConfig
from .hf_write import write_json

Meta = Mapping[str, Any]

_CONTROL, _USER_DEFINED = 3, 4  # llama.cpp's token types

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(regex: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), behavior="isolated"), byte_level])


def _gpt2(split_digits: bool) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
    return pre_tokenizers.Sequence([*digits, byte_level])


PRE_TOKENIZERS = {
    "llama-bpe": lambda: _split(_LLAMA3),
    "llama3": lambda: _split(_LLAMA3),
    "llama-v3": lambda: _split(_LLAMA3),
    "qwen2": lambda: _split(_QWEN2),
    "deepseek-r1-qwen": lambda: _split(_QWEN2),
    "smollm": lambda: _gpt2(split_digits=True),
    "gpt-2": lambda: _gpt2(split_digits=False),
}
"""`tokenizer.ggml.pre` -> how text is cut before merging (llama.cpp, `llama-vocab.cpp`)."""

_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def write_tokenizer(folder: Path, meta: Meta) -> dict[str, Any]:
    """Write the tokenizer and chat template of `meta` to `folder`; return the special ids for config.json.

    Raises UnknownArchitecture for a tokenizer model or a pre-tokenizer that is not known.
    """
    from transformers import PreTrainedTokenizerFast

    tokens = meta.get("tokenizer.ggml.tokens")
    if not tokens:
        raise UnsupportedConfig("the GGUF file has no tokenizer (tokenizer.ggml.tokens)")
    ids = {
        name: meta.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    add_bos = _adds_bos(meta)
    if add_bos and ids["bos"] is None:
        raise UnsupportedConfig("the GGUF file asks for a BOS token and names none")
    backend = _backend(meta)
    if add_bos:
        bos = tokens[ids["bos"]]
        template = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, ids["bos"])]
        )
        backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    special = {f"{name}_token": tokens[i] for name, i in ids.items() if i is not None}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        add_bos_token=add_bos,
        model_max_length=meta.get(f"{meta['general.architecture']}.context_length"),
        **special,
    )
    tokenizer.chat_template = meta.get("tokenizer.chat_template")
    tokenizer.save_pretrained(folder)
    # transformers 5 writes a class name that older loaders do not know; both know this one.
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    write_json(folder / "tokenizer_config.json", {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
    return {f"{name}_token_id": i for name, i in ids.items() if name != "unk" and i is not None}


def generation_config(meta: Meta, specials: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: special ids, with every id that ends a turn (eos, eot, eom) in the eos list."""
    stops = [meta.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    unique = list(dict.fromkeys(i for i in stops if i is not None))
    eos = {"eos_token_id": unique if len(unique) > 1 else unique[0]} if unique else {}
    return {**specials, **eos}


def _adds_bos(meta: Meta) -> bool:
    """The file's flag; without one SentencePiece and Llama 3 vocabularies add BOS and the others do not."""
    default = meta.get("tokenizer.ggml.model") == "llama" or meta.get("tokenizer.ggml.pre") in _LLAMA3_NAMES
    return bool(meta.get("tokenizer.ggml.add_bos_token", default))


def _backend(meta: Meta) -> Tokenizer:
    kind = meta.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(meta)
    if kind == "llama":
        return _sentencepiece(meta)
    raise UnknownArchitecture(str(kind), ("gpt2", "llama"), "GGUF tokenizer model")


def _byte_level(meta: Meta) -> Tokenizer:
    """Byte-level BPE. Token texts are kept as the file spells them, so that ids never move."""
    pre = meta.get("tokenizer.ggml.pre", "gpt-2")
    if pre not in PRE_TOKENIZERS:
        raise UnknownArchitecture(str(pre), PRE_TOKENIZERS, "GGUF pre-tokenizer")
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    # Llama 3 takes a whole word that is in the vocabulary as it is, even when merges would not lead to it.
    model = BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, ignore_merges=pre in _LLAMA3_NAMES)
    tokenizer = Tokenizer(model)
    if pre in ("qwen2", "deepseek-r1-qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    types = meta.get("tokenizer.ggml.token_type") or []
    for kind in (_CONTROL, _USER_DEFINED):
        added = [
            AddedToken(token, normalized=False, special=kind == _CONTROL)
            for token, its_kind in zip(tokens, types, strict=False)
            if its_kind == kind
        ]
        (tokenizer.add_special_tokens if kind == _CONTROL else tokenizer.add_tokens)(added)
    return tokenizer


def _sentencepiece(meta: Meta) -> Tokenizer:
    """transformers' conversion, which derives merges from the scores where the file has none."""
    from transformers.integrations.gguf import convert_gguf_tokenizer

    keys = ("tokens", "scores", "token_type", "merges")
    fields = {key: meta[f"tokenizer.ggml.{key}"] for key in keys if f"tokenizer.ggml.{key}" in meta}
    backend, _ = convert_gguf_tokenizer(meta["general.architecture"], {"tokenizer_type": "llama", **fields})
    return backend
