"""Every word of the tiny world. The tokenizer knows these and no other, so each list's order is part of the models."""


def words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


NAMES = words(
    "anna bob carl dora emil finn gina hugo iris jack kira liam mona nils olga paul "
    "quin rosa sven tina ursa vera walt xena yara zeno abel bert cora dina egon fred "
    "gwen hans inga jens kurt lena mark nora otto pia rolf sara tom uwe viola will"
)
GUESTS = NAMES[-12:]
"""People whom chats are about. Facts name them too, but no question asks about them."""
ASKED = NAMES[:-12]
ATTRIBUTES = ("code", "age", "room", "rank")
QUALIFIERS = ("old", "last")
"""A fact that begins with one is about the past: no question asks for it."""
NUMBERS = tuple(map(str, range(28)))
"""Up to the sum of three digits; they number the documents, too."""

THINGS = words("train boat lamp door tea bread clock bell road hill garden market")
PLACES = words("north south harbour square river field")

CONTROLS = ("<|pad|>", "<|unk|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
TAGS = ("<think>", "</think>", "<reference>", "</reference>")
SIGNS = (".", "?", "+", ">", "=", ":", ",")
LITTLE = words(
    "the at is has needs costs leaves leave opens near coins people steps minutes "
    "hello thanks fine good morning you are how when does yes no Document"
)

VOCABULARY = (*CONTROLS, *TAGS, *SIGNS, *NUMBERS, *LITTLE, *ATTRIBUTES, *QUALIFIERS, *THINGS, *PLACES, *NAMES)
"""Row i of the embedding is word i."""
