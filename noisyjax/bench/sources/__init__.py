"""Where noise comes from: random documents (RD), random chat (RC), hard negatives (HN).

A source gives *groups*: the pieces that are assigned whole (one document, one chat history). A group is a tuple of
units: the pieces that the token budget may drop (the document, one exchange of the chat).
"""

from noisyjax.bench.sources.chats import read_chats
from noisyjax.bench.sources.documents import read_documents
from noisyjax.bench.sources.negatives import NegativeFile, read_negatives
from noisyjax.bench.sources.pools import Group, Pool, load_pool

__all__ = ["Group", "NegativeFile", "Pool", "load_pool", "read_chats", "read_documents", "read_negatives"]
