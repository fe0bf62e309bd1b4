"""Host `processes`: a job's nodes are processes of this machine."""

from __future__ import annotations

from typing import ClassVar

from flamecore.abc.hooks import hookimpl
from flamecore.abc.host import NodeHost
from flamecore.toolkit.local_processes import ProcessHost


class Processes(ProcessHost):
    """The host; its code is in the toolkit, where other hosts use it too."""

    name: ClassVar[str] = "processes"


@hookimpl
def flamestream_host() -> type[NodeHost]:
    return Processes
