"""Model folders and files: Hugging Face both ways, GGUF in."""

from .gguf import convert_gguf
from .hf_read import LoadedModel, load, read_config
from .hf_write import save
from .peft import save_adapter

__all__ = ["LoadedModel", "convert_gguf", "load", "read_config", "save", "save_adapter"]
