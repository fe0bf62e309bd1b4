"""Options of source and sink, and the conversion of payloads to bytes and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from flamecore.abc.sink import Mode
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError
from flamecore.toolkit.records.parse import Decode, json_decoder
from flamecore.toolkit.records.plain import Unencodable, encode
from flamestream_nats.options import Seconds, ServerOptions, check

Format = Literal["auto", "json", "text", "bytes"]

_SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_FILTER: Final = re.compile(r"([^\s.*>]+|\*)(\.([^\s.*>]+|\*))*(\.>)?|>")
_STREAM: Final = re.compile(r"[^\s.*>/\\]+")


class EdgeOptions(ServerOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options common to source and sink, besides those of `ServerOptions`.

    Attributes:
        stream: Name of the stream.
        format: Format of messages: `json`, `text` or `bytes`. By default text if the flow declares `str`, bytes if it
            declares `bytes`, JSON otherwise.
        request_timeout_s: Time after which a request to a slow or unreachable server fails.
    """

    stream: str = ""
    format: Format = "auto"
    request_timeout_s: Seconds = 30.0


class SourceOptions(EdgeOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the source, besides those of `EdgeOptions`.

    Attributes:
        stream: Name of the stream; by default the one that has the subject.
        subject: Only messages of this subject, which may have wildcards; all of the stream by default.
        end: `last`: end with the message that is the last one when the run begins, which a crash does not change. By
            default it never ends.
        consumer: Name of the consumer by which messages are acknowledged; for streams that keep them until then.
    """

    section: ClassVar[str] = "source"

    subject: str = ""
    end: Literal["", "last"] = ""
    consumer: str = ""

    @property
    def permissions(self) -> str:
        return "publish to $JS.API.> and $JS.ACK.>, and subscribe to _INBOX.>"


class SinkOptions(EdgeOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the sink, besides those of `EdgeOptions`.

    Attributes:
        stream: Name of the stream, created if it does not exist; the sink's name by default.
        subject: Subject to publish messages to; the stream's name by default.
        mode: Treatment of messages that are there: `replace` them, `append` to them, or `resume` the run that wrote
            them. A job that keeps state resumes its own, whatever this says.
        replicas: Number of servers of the cluster that store the stream, if it has to be made.
    """

    section: ClassVar[str] = "sink"

    subject: str = ""
    mode: Mode = "replace"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1

    @property
    def permissions(self) -> str:
        return f"publish to $JS.API.> and {self.subject or 'the subject'} with all below it, and subscribe to _INBOX.>"


def placed(options: Any, kind: type[EdgeOptions], context: EdgeContext, *, wildcards: bool) -> Any:
    """Check the options of a source or sink, and add their section for errors.

    Args:
        options: The options; None stands for the defaults.
        kind: Class of the options.
        context: Context of the source or sink.
        wildcards: Whether the subject may have wildcards.

    Raises:
        ConfigError: An option cannot be used.
    """
    section = f"{kind.section}.{context.name}"
    own: Any = msgspec.defstruct(
        kind.__name__,
        (),
        bases=(kind,),
        namespace={"section": section},
        module=kind.__module__,
        frozen=True,
        kw_only=True,
    )
    options = own(**msgspec.structs.asdict(options if options is not None else kind()))
    check(options)
    if options.stream and not _STREAM.fullmatch(options.stream):
        raise _wrong(section, "stream", options.stream, "Names of streams have no spaces, dots, slashes, * or >.")
    if options.subject and not (_FILTER if wildcards else _SUBJECT).fullmatch(options.subject):
        what = "Subjects are words joined by dots" + (", or * in their place, or > at the end." if wildcards else ".")
        raise _wrong(section, "subject", options.subject, what)
    return options


def _wrong(section: str, key: str, value: str, hint: str) -> ConfigError:
    path = f"{section}.{key}"
    return ConfigError(f"{path} = {value!r} cannot be one", hint=hint, path=path)


def decoder(context: EdgeContext, format_: Format) -> Decode:
    """Return the function that makes records of messages.

    Raises:
        ConfigError: The flow declares a type that it cannot make.
    """
    match format_ if format_ != "auto" else {str: "text", bytes: "bytes"}.get(context.type, "json"):
        case "text":
            return bytes.decode
        case "bytes":
            return bytes
        case _:
            return json_decoder(context)


def encoder(context: EdgeContext, format_: Format) -> Callable[[Any], bytes]:
    """Return the function that makes messages of payloads; it raises `Unencodable`."""
    match format_ if format_ != "auto" else {str: "text", bytes: "bytes"}.get(context.type, "json"):
        case "text":
            return _text
        case "bytes":
            return _bytes
        case _:
            return encode


def _text(payload: Any) -> bytes:
    if not isinstance(payload, str):
        raise Unencodable(payload, "messages are text here")
    try:
        return payload.encode()
    except UnicodeEncodeError as error:
        raise Unencodable(payload, str(error)) from error


def _bytes(payload: Any) -> bytes:
    if not isinstance(payload, bytes | bytearray):
        raise Unencodable(payload, "messages are bytes here")
    return bytes(payload)
