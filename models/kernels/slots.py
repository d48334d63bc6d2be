"""Rows of training tokens in slots, and who sees whom in them, in a form that a kernel can work out.

Every prompt and every response of a row begins at a multiple of a grain; a prompt ends at one, too (its padding comes
first), so that the distance between a token of a response and one of its prompt follows from where their slots lie.
All that a kernel must know of a query is then one int32, its code:

    its index in the row | where its own slot begins, in grains | where its prompt's slot ends, in grains (0: no prompt)

A query sees a key of its group (a prompt and its responses; 0 is padding) that does not lie behind it, if the key lies
in the query's own slot or in the prompt's. Slots are any number and of any length: rows are packed as freely as before.

Arrays may be of numpy or of jax. Legend: B rows, T tokens of a row, I and J blocks of queries and of keys.
"""

from typing import Any

BLOCK = 512
"""Queries, and keys, of a block at most: large products, and scores that stay in the vector memory."""
LANES = 128
"""The smallest block that kernels take, and the smallest grain."""


def block(length: int) -> int:
    """The size of blocks in rows of this length, a multiple of LANES. Raises ValueError where it is none."""
    for size in (BLOCK, BLOCK // 2, LANES):
        if length % size == 0:
            return size
    raise ValueError(f"a row of {length} tokens is no multiple of {LANES}")


def align(length: int) -> int:
    """The length of the row that holds so many tokens: whole blocks, the smallest ones where it is a short row."""
    size = BLOCK if length > BLOCK else LANES
    return -(-length // size) * size


def grain(length: int) -> int:
    """Tokens to which slots are aligned in rows of this length: as few as leave a code within 32 bits.

    >>> grain(4096), grain(32768), grain(33280), grain(131072)
    (128, 128, 256, 1024)
    """
    size = LANES
    while sum(_bits(length, size)) + _bits(length, size)[1] > 32:
        size *= 2
    return size


def _bits(length: int, size: int) -> tuple[int, int]:
    """Of an index in the row, and of a number of grains."""
    return (length - 1).bit_length(), (-(-length // size) - 1).bit_length()


def encode(index_t: Any, start: int, end: int, length: int) -> Any:
    """Codes of queries at these indices, int32. start, end: the own slot's begin and the prompt's end (0: none)."""
    size = grain(length)
    bits, more = _bits(length, size)
    code = (start // size) << bits | (end // size) << (bits + more)
    return index_t | (code - 2**32 if code >= 2**31 else code)


def decode(code: Any, length: int) -> tuple[Any, Any, Any]:
    """(index in the row, begin of the own slot, end of the prompt's), all in tokens."""
    size = grain(length)
    bits, more = _bits(length, size)
    grains = 2**more - 1
    return code & (2**bits - 1), (code >> bits & grains) * size, (code >> (bits + more) & grains) * size


def visible(code: Any, key: Any, length: int, window: int | None = None) -> Any:
    """bool: does a query see the key at an index of its row, if it is one of its group?

    window: positions back that a query sees, itself included. Between a response and its prompt lie slots of others,
    which are no distance.
    """
    index, start, end = decode(code, length)
    own = key >= start
    see = (key <= index) & (own | (key < end))
    if window is None:
        return see
    xp = code.__array_namespace__()
    return see & (xp.where(own, key, key + (start - end)) > index - window)


def partners(code_bt: Any, group_bt: Any, window: int | None = None) -> Any:
    """bool [B, I, J]: pairs of blocks in which a query may see a key; never too few.

    A block of queries always visits its own keys: padding must see something, or a softmax divides by zero.
    """
    xp = code_bt.__array_namespace__()
    b, t = code_bt.shape
    size = block(t)
    index, start, end = decode(code_bt, t)
    real, response = group_bt > 0, (group_bt > 0) & (end > 0)

    def least(x: Any, where: Any = real) -> Any:
        return xp.where(where, x, 2 * t).reshape(b, -1, size).min(-1)[:, :, None]

    def most(x: Any, where: Any = real) -> Any:
        return xp.where(where, x, -1).reshape(b, -1, size).max(-1)[:, :, None]

    first_j = xp.arange(0, t, size)
    last_j = first_j + (size - 1)
    own, prompt = last_j >= least(start), first_j < most(end, response)
    if window is not None:
        own &= last_j > least(index) - window
        prompt &= last_j > least(index - start + end, response) - window
    low, high = least(group_bt), most(group_bt)
    meet = (low <= high.swapaxes(1, 2)) & (low.swapaxes(1, 2) <= high)
    before = first_j[:, None] - first_j
    return (own | prompt) & meet & (before > 0) | (before == 0)
