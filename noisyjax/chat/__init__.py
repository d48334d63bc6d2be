"""Chat templates to token ids with labelled spans, thought splitting, token budgets, and the CiC prompt."""

from noisyjax.chat.budget import Fit, MixtureFit, fit, fit_mixture
from noisyjax.chat.prompt import build_prompt, estimate_tokens
from noisyjax.chat.render import Rendered, RenderStats, render
from noisyjax.chat.thoughts import Thoughts, ThoughtState, ThoughtTags, split
from noisyjax.chat.tokenizer import ChatTokenizer

__all__ = [
    "ChatTokenizer",
    "Fit",
    "MixtureFit",
    "RenderStats",
    "Rendered",
    "ThoughtState",
    "ThoughtTags",
    "Thoughts",
    "build_prompt",
    "estimate_tokens",
    "fit",
    "fit_mixture",
    "render",
    "split",
]
