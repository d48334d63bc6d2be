"""Chat templates to token ids with labelled spans, thought splitting, token budgets, and the CiC prompt."""

from noisyjax.chat.budget import Fit, fit
from noisyjax.chat.prompt import build_prompt, estimate_tokens
from noisyjax.chat.render import Rendered, RenderStats, render
from noisyjax.chat.thoughts import Thoughts, ThoughtState, ThoughtTags, split
from noisyjax.chat.tokenizer import ChatTokenizer

__all__ = [
    "ChatTokenizer",
    "Fit",
    "RenderStats",
    "Rendered",
    "ThoughtState",
    "ThoughtTags",
    "Thoughts",
    "build_prompt",
    "estimate_tokens",
    "fit",
    "render",
    "split",
]
