"""gRPC closes its connections in its own time, which hides no other connection that is left open."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from flamecore.runtime.tasks.leftovers import Leftovers
from flamestream_grpc import Options


@pytest.mark.parametrize("listen", ["unix", "127.0.0.1:0"])
def test_connections_are_named_but_for_those_of_grpc(listen: str, mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.runtime.tasks.leftovers._SOON_S", 0.0)

    async def main() -> list[str]:
        leftovers = Leftovers(shown=True)
        async with mesh() as made:
            a, b = [await made.add(node, Options(listen=listen)) for node in ("a", "b")]
            await a.bind("a/1")
            b_1 = await b.bind("b/1")
            await b_1.send("a/1", 7)
            own = socket.create_server(("127.0.0.1", 0))
            _, writer = await asyncio.open_connection(*own.getsockname())
            accepted, _ = own.accept()
            await leftovers.look(())
            ports = f"{own.getsockname()[1]})", f"{accepted.getpeername()[1]})"
            writer.close()
            accepted.close()
            own.close()
        named = [each for each in leftovers.named if "listening" not in each]
        assert all(ports[0] in each and ports[1] in each for each in named)
        return named

    assert len(asyncio.run(main())) == 2, "both ends, and none of gRPC's"
