"""A process that uses gRPC and starts others."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio
import signal
import subprocess

import flamestream_grpc
import grpc.aio


def ignore() -> None:  # with something to do in it, the fork runs Python before it becomes another program
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def start_many() -> list[int]:
    return [subprocess.run(["true"], preexec_fn=ignore).returncode for _ in range(200)]


async def main() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    async def call() -> None:
        while True:
            try:
                await channel.unary_unary("/nobody/here")(b"")
            except grpc.aio.AioRpcError:
                pass

    calls = [asyncio.create_task(call()) for _ in range(4)]
    codes = await asyncio.to_thread(start_many)
    for task in calls:
        task.cancel()
    await asyncio.wait(calls)
    await channel.close()
    await server.stop(None)
    assert set(codes) == {0}, sorted(codes)[:5]


asyncio.run(main())
"""


def test_a_process_started_while_grpc_works_begins() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
