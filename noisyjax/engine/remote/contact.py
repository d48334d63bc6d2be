"""Whether the endpoint can be reached: how long it may be silent, and what is said meanwhile."""

import logging
import time
from collections.abc import Callable

from noisyjax.engine.remote.config import RemoteConfig
from noisyjax.errors import RunError

RESUME = "The samples received so far are kept; start the same run again and it goes on from there."

log = logging.getLogger(__name__)


class Contact:
    """One per engine. A silence begins with the first call that met no server and ends with any answer."""

    def __init__(self, config: RemoteConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._config = config
        self._heard = False
        self._silent_since: float | None = None

    def answered(self) -> None:
        """Some answer came, be it an error."""
        if self._silent_since is not None:
            log.warning("%s answers now", self._config.base_url)
        self._heard, self._silent_since = True, None

    def refused(self, began: float, words: str) -> float:
        """A call that began at `began` met no server. Seconds left until the silence has lasted too long.

        Says what is waited for when a silence begins. Raises RunError once it has lasted longer than the config allows.
        """
        c = self._config
        limit = c.outage_s if self._heard else min(c.outage_s, c.first_contact_s)
        if self._silent_since is None:
            self._silent_since = began
            what = "answers no more" if self._heard else "does not answer"
            log.warning("%s %s (%s): trying again for %g s", c.base_url, what, words, limit)
        left = self._silent_since + limit - self.clock()
        if left > 0:
            return left
        if self._heard:
            raise RunError(f"{c.base_url} has refused connections for {limit:g} s ({words}). {RESUME}")
        raise RunError(
            f"nothing answered at {c.base_url} for {limit:g} s ({words}): is the server running, is base_url right? "
            f"For one that is still starting, raise engine.first_contact_s. {RESUME}"
        )
