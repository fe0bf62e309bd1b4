"""Transport `grpc`: addresses of a job in several processes. Needs `grpcio`.

The processes may be on one machine or on several.
"""

from __future__ import annotations

import os

from flamestream_grpc import environment

os.environ.update(environment.missing())  # before gRPC is imported: it reads them then

from flamecore.abc.hooks import hookimpl
from flamecore.abc.transport import Transport
from flamestream_grpc.options import Options
from flamestream_grpc.transport import GrpcTransport

__all__ = ["GrpcTransport", "Options"]


@hookimpl
def flamestream_transport() -> type[Transport]:
    return GrpcTransport
