"""GRPO steps of TRL (torch, transformers `generate`). Needs: torch, trl, datasets, accelerate."""

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1"}
sys.path.insert(0, str(Path(__file__).parent))

import torch
import toy
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(os.cpu_count() or 1)


def tokenizer() -> PreTrainedTokenizerFast:
    names = {toy.PAD: "<pad>", toy.EOS: "<eos>", toy.BOS: "<bos>"}
    vocabulary = {names.get(i, c): i for i, c in enumerate(toy.letters())}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<eos>", pad_token="<pad>", bos_token="<bos>", padding_side="left"
    )


def model() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=toy.VOCABULARY,
        hidden_size=toy.WIDTH,
        intermediate_size=toy.FFN,
        num_hidden_layers=toy.LAYERS,
        num_attention_heads=toy.HEADS,
        num_key_value_heads=toy.KV_HEADS,
        head_dim=toy.HEAD_DIM,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=toy.EOS,
        pad_token_id=toy.PAD,
        bos_token_id=toy.BOS,
    )
    # Saved and read back: the trainer asks a model for the folder it came from.
    folder = tempfile.mkdtemp()
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def on_step_end(self, *args: object, **more: object) -> None:
        self.times.append(time.perf_counter())


clock = Clock()
trainer = GRPOTrainer(
    model=model(),
    reward_funcs=lambda prompts, completions, **more: [toy.reward(c) for c in completions],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=toy.SAMPLES * toy.PROMPTS,
        num_generations=toy.SAMPLES,
        max_completion_length=toy.NEW_TOKENS,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=toy.BETA,
        learning_rate=toy.LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=toy.STEPS,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        generation_kwargs={"min_new_tokens": toy.NEW_TOKENS},
    ),
    train_dataset=Dataset.from_dict({"prompt": [p for step in range(toy.STEPS) for p in toy.prompts(step)]}),
    processing_class=tokenizer(),
    callbacks=[clock],
)
clock.times = [time.perf_counter()]
trainer.train()
toy.say("trl", [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)])
