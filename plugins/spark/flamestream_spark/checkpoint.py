"""Checkpoint of a stream: the flow that it belongs to, and its removal."""

from __future__ import annotations

from typing import Final

import msgspec

from flamecore.errors import ConfigError
from flamestream_spark.storage.place import Place

_FILE: Final = "_flow.json"
_REMOVED: Final = ("query", "spool", "state")
"""Folders that are removed with a flow. Its output is replaced by the sinks, once there is another one."""


class _Owner(msgspec.Struct, frozen=True):
    """The flow that a checkpoint belongs to.

    Attributes:
        flow: Its name.
        removing: Whether the remains of a former flow are still to be removed.
    """

    flow: str
    removing: bool = False


class Checkpoint:
    """The checkpoint of a flow.

    Args:
        place: The place.
        flow: Name of the flow that is to use it.
    """

    def __init__(self, place: Place, flow: str) -> None:
        self._place, self._flow = place, flow

    # The name, and no fingerprint of the flow: a flow may change between two runs, and the state knows which changes
    # fit. But each name has a state of its own, so another name would begin at nothing, where rows have gone already.
    def check(self, *, replace: bool) -> None:
        """Make sure that the checkpoint belongs to this flow, or to none, or is to be replaced.

        Raises:
            ConfigError: It belongs to another flow, or cannot be read.
        """
        held = self._held()
        if held is not None and held.flow != self._flow and not replace:
            raise ConfigError(
                f"checkpoint {self._place.url} belongs to flow {held.flow!r}, and this is flow {self._flow!r}",
                hint=f"Give this flow a checkpoint of its own, or the name {held.flow!r} to go on with that one. To "
                "remove the other flow's state and output, and begin anew: stream(…, replace=True).",
                path="checkpoint",
            )

    def take(self, *, replace: bool) -> None:
        """Record the flow that the checkpoint belongs to; remove a former one that is to be replaced.

        Raises:
            ConfigError: As `check`; or it cannot be written.
        """
        self.check(replace=replace)
        held = self._held()
        try:
            if replace or (held is not None and held.removing):
                # Recorded first: a program that is killed half-way must not leave a flow its name without its state.
                self._record(_Owner(self._flow, removing=True))
                for folder in _REMOVED:
                    self._place.clear(folder)
            elif held is not None:
                return
            self._record(_Owner(self._flow))
        except OSError as error:
            raise self._error(f"cannot be written: {error.strerror or error}") from error

    def _record(self, owner: _Owner) -> None:
        self._place.replace(_FILE, msgspec.json.encode(owner))

    def _held(self) -> _Owner | None:
        try:
            data = self._place.read(_FILE)
            return None if data is None else msgspec.json.decode(data, type=_Owner)
        except (OSError, ValueError) as error:
            raise self._error(f"cannot be read: {error}") from error

    def _error(self, what: str) -> ConfigError:
        return ConfigError(
            f"checkpoint: {self._place.at(_FILE)} {what}",
            hint="Is the place whole, and may this user write there? Else give another checkpoint.",
            path="checkpoint",
        )
