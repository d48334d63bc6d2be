"""What a TPU costs: a table that its reader keeps."""

from pydantic import Field, RootModel

from noisyjax.config import Schema, load
from noisyjax.errors import UsageError, nearest
from noisyjax.tpu.names import GENERATIONS


class ChipPrice(Schema):
    """US dollars per chip and hour; null where it is not known."""

    on_demand: float | None = Field(default=None, gt=0)
    spot: float | None = Field(default=None, gt=0)


class ChipPrices(RootModel[dict[str, ChipPrice]]):
    """Generation, as `v5e` -> price."""


def read_prices(source: str) -> dict[str, ChipPrice]:
    """The table in a YAML file, or a packaged one by its name. UsageError for what is no generation."""
    table = load(ChipPrices, source).root
    for name in table:
        if name not in GENERATIONS:
            raise UsageError(f"{source}: '{name}' is no kind of TPU; {nearest(name, GENERATIONS)}")
    return table
