"""From a data config to the stream that a training run reads."""

from noisyjax.chat import ChatTokenizer
from noisyjax.errors import UsageError
from noisyjax.instruct.files import open_files
from noisyjax.instruct.prompt import Asked, prompt_maker
from noisyjax.instruct.record import ChatRecord, InstructRecord, parse_chat, parse_instruct
from noisyjax.instruct.schema import DataConfig
from noisyjax.instruct.sft import SftExample, chat_example_maker, record_example_maker
from noisyjax.instruct.stream import RecordStream


def prompt_stream(
    config: DataConfig, tokenizer: ChatTokenizer, *, seed: int, process_index: int = 0, process_count: int = 1
) -> RecordStream[InstructRecord, Asked]:
    """The prompts of a GRPO run. Raises UsageError for files that cannot be used and for kind=chat."""
    if config.kind == "chat":
        raise UsageError("kind=chat has no gold answers to reward; GRPO needs kind=instruct")
    return RecordStream(
        open_files(config.files, parse_instruct, skip_bad=config.skip_bad, check=config.check),
        prompt_maker(tokenizer, config.prompt),
        config,
        seed=seed,
        process_index=process_index,
        process_count=process_count,
    )


def example_stream(
    config: DataConfig, tokenizer: ChatTokenizer, *, seed: int, process_index: int = 0, process_count: int = 1
) -> RecordStream[InstructRecord, SftExample] | RecordStream[ChatRecord, SftExample]:
    """The examples of an SFT run, of records or of conversations. Raises UsageError for files that cannot be used."""
    place = {"seed": seed, "process_index": process_index, "process_count": process_count}
    if config.kind == "chat":
        chats = open_files(config.files, parse_chat, skip_bad=config.skip_bad, check=config.check)
        return RecordStream(chats, chat_example_maker(tokenizer, config.prompt, config.target), config, **place)
    records = open_files(config.files, parse_instruct, skip_bad=config.skip_bad, check=config.check)
    return RecordStream(records, record_example_maker(tokenizer, config.prompt, config.target), config, **place)
