"""NoisyInstruct: training records (question, hint, distractors), their files, and the prompts made of them."""

from noisyjax.instruct.files import RecordFiles, open_files
from noisyjax.instruct.open import example_stream, prompt_stream
from noisyjax.instruct.prompt import Asked, instruction, prompt_maker, record_messages, record_prompt
from noisyjax.instruct.record import (
    COMPOSITIONS,
    ChatRecord,
    Composition,
    InstructRecord,
    parse_chat,
    parse_instruct,
)
from noisyjax.instruct.schema import REFERENCE_SUFFIX, DataConfig, PromptConfig, TargetConfig
from noisyjax.instruct.sft import SftExample, chat_messages, sft_example
from noisyjax.instruct.stream import Batch, Counts, Kept, Left, RecordStream
from noisyjax.instruct.writers import write_records

__all__ = [
    "COMPOSITIONS",
    "REFERENCE_SUFFIX",
    "Asked",
    "Batch",
    "ChatRecord",
    "Composition",
    "Counts",
    "DataConfig",
    "InstructRecord",
    "Kept",
    "Left",
    "PromptConfig",
    "RecordFiles",
    "RecordStream",
    "SftExample",
    "TargetConfig",
    "chat_messages",
    "example_stream",
    "instruction",
    "open_files",
    "parse_chat",
    "parse_instruct",
    "prompt_maker",
    "prompt_stream",
    "record_messages",
    "record_prompt",
    "sft_example",
    "write_records",
]
