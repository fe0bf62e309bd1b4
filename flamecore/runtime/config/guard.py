"""Checks of plugins against their contracts; an error names the plugin at fault.

A guarded driver is of a subclass of its own class, whose methods check: they are called for batches and steps of a
job's life, never for items. The parts that it makes (readers, endpoints, trackers) are called more often, and stay as
they are: the driver that made them is noted, and the traceback of an error tells which of them has raised it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from traceback import walk_tb
from typing import Any, Final, NamedTuple, get_args

from flamecore.abc.acker import Acker, Listener, Reporter, Tracker
from flamecore.abc.host import NodeHost
from flamecore.abc.operator import Operator, StatefulOperator
from flamecore.abc.registry import Entry, JobRegistry, RegistryCapabilities
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import Batch, Reader, Rejected, Source, SourceCapabilities
from flamecore.abc.store import Store, StoreCapabilities
from flamecore.abc.transport import Endpoint, Outlook, Transport, TransportCapabilities
from flamecore.errors import FlameError, PluginContractError, PluginLoadError
from flamecore.model.failure import shorten_repr, user_lines


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a plugin, for errors.

    Attributes:
        kind, name: Its kind and name in a configuration.
        distribution, version: The distribution that provides it; None if it is not installed.
        module: The module with its code.
        place: Dotted key of its use, if there may be several: "source.lines".
    """

    kind: str
    name: str
    distribution: str | None
    version: str | None
    module: str
    place: str = ""

    def __str__(self) -> str:
        of = f"{self.distribution} {self.version}" if self.distribution else f"{self.module}, of no distribution"
        return f"{self.kind} {self.name!r} ({of})" + (f" for {self.place}" if self.place else "")

    def error(self, what: str, call: str) -> PluginContractError:
        """Return the error of a broken contract."""
        return PluginContractError(
            f"{self} {what}",
            hint=f"A mistake in the plugin, not in the job: report it to its author, or use another {self.kind}.",
            kind=self.kind,
            name=self.name,
            distribution=self.distribution,
            version=self.version,
            call=call,
        )


class Rule(NamedTuple):
    """The rule that a method of a contract has to keep.

    Attributes:
        wrong: Returns the fault in a returned value, or None.
        part: Contract of the part that it returns, whose maker is noted.
        raises: Errors that it may raise, besides those of the project.
    """

    wrong: Callable[[Any], str | None] | None = None
    part: type | None = None
    raises: tuple[type[Exception], ...] = ()


def _a(*kinds: type) -> Rule:
    """Return the rule of a method that returns an instance of one of the classes."""
    wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    return Rule(lambda found: None if isinstance(found, kinds) else _not(found, wanted))


def _made(part: type) -> Rule:
    """Return the rule of a method that makes a part."""
    return Rule(lambda found: None if isinstance(found, part) else _not(found, part.__name__), part)


def _all(kind: type) -> Rule:
    """Return the rule of a method that returns several of a class, in order."""
    wanted = f"a sequence of {kind.__name__}"

    def wrong(found: object) -> str | None:
        if isinstance(found, str) or not isinstance(found, Sequence):
            return _not(found, wanted)
        return next((_not(one, kind.__name__, among=True) for one in found if not isinstance(one, kind)), None)

    return Rule(wrong)


def _not_names(found: object) -> str | None:
    """Return what is wrong with the names of partitions: state is found by them."""
    if (wrong := _all(str).wrong) is not None and (why := wrong(found)) is not None:
        return why
    assert isinstance(found, Sequence)
    twice = [name for name, count in Counter(found).items() if count > 1]
    return f"returned the name {twice[0]!r} for several partitions: each needs one of its own" if twice else None


def _not(found: object, wanted: str, *, among: bool = False) -> str:
    what = "None" if found is None else f"{shorten_repr(found)}, a {type(found).__qualname__}"
    return f"returned {what}{' among others' if among else ''}, where {wanted} is asked for"


def _no_end(found: object) -> str | None:
    """Return why an end cannot be kept in the state; None: it can."""
    left = [found]
    while left:
        one = left.pop()
        if type(one) is tuple:
            left += one
        elif one is not None and type(one) not in (int, str):
            return _not(one, "an int, a str, or a tuple of these", among=one is not found)
    return None


_NOTHING: Final = Rule()
"""The rule of a method whose result is ignored."""
_NONE: Final = type(None)

_NAMES: Final = Rule(_not_names)
_GUARANTEE: Final = Rule(lambda found: None if found in get_args(Guarantee) else f"promises {found!r}, which is none")
_TRACKERS: Final = Rule(lambda found: None if isinstance(found, int) and found > 0 else f"has {found!r} trackers")

CONTRACTS: Final[Mapping[type, Mapping[str, Rule]]] = {
    Source: {
        "capabilities": _a(SourceCapabilities),
        "partitions": _NAMES,
        "partition_of": _a(str),
        "fingerprint": _a(str),
        "reads": _a(bool),
        "open": _made(Reader),
        "find_end": Rule(_no_end),
        "open_until": _made(Reader),
    },
    Sink: {
        "guarantee": _GUARANTEE,
        "host": _a(str),
        "takes_more": _a(bool),
        "writes": _all(str),
        "continues": _NOTHING,
        "rehearse": _NOTHING,
        "open": _a(int),
        "write": _NOTHING,
        "write_ordered": _NOTHING,
        "write_encoded": _NOTHING,
        "sync": _NOTHING,
        "aclose": _NOTHING,
    },
    Store: {
        "capabilities": _a(StoreCapabilities),
        "open": _NOTHING,
        "create": _a(bool),
        "read": _a(bytes, _NONE),
        "names": _all(str),
        "delete": _NOTHING,
        "aclose": _NOTHING,
    },
    JobRegistry: {
        "capabilities": _a(RegistryCapabilities),
        "open": _NOTHING,
        "get": _a(Entry, _NONE),
        "create": _a(int, _NONE),
        "update": _a(int, _NONE),
        "delete": _a(bool),
        "keys": _all(str),
        "aclose": _NOTHING,
    },
    Transport: {
        "capabilities": _a(TransportCapabilities),
        "outlook": _a(Outlook),
        "start": _a(str),
        "bind": _made(Endpoint),
        "aclose": _NOTHING,
    },
    Acker: {
        "trackers": _TRACKERS,
        "tracker": _made(Tracker),
        "reporter": _made(Reporter),
        "listener": _made(Listener),
    },
    NodeHost: {
        "described": _a(Mapping),
        "open": _NOTHING,
        "start": Rule(raises=(OSError,)),
        "running": _all(str),
        "came": _a(Collection, _NONE),
        "release": _NOTHING,
        "watches": _NOTHING,
        "kill": _NOTHING,
        "lost": _NOTHING,
        "stop": _NOTHING,
    },
    Operator: {"on_time": _NOTHING},
    StatefulOperator: {
        "on_time": _NOTHING,
        "trim": _NOTHING,
        "cut": _all(Mapping),
        "snapshot_of": _a(Mapping),
        "restore": _NOTHING,
        "compact": _NOTHING,
        "groups_of": _a(Sequence),
    },
}
"""For each contract, its methods and properties that are checked."""

_MAKERS: Final[dict[type, Origin]] = {}
"""For each class of parts and drivers the plugin that made one last; errors of its methods name it."""

_KINDS: Final[Mapping[str, type]] = {
    "source": Source,
    "sink": Sink,
    "store": Store,
    "registry": JobRegistry,
    "transport": Transport,
    "acker": Acker,
    "host": NodeHost,
    "operator": Operator,
}


def guarded(driver: Any, origin: Origin) -> object:
    """Return a driver's class that is held to its contract.

    For an observer return the same object with checked hooks.

    Raises:
        PluginLoadError: The driver is no class of its contract, or lacks a method of it.
    """
    if origin.kind == "hooks":
        return _observer(driver, origin)
    contract = _KINDS.get(origin.kind)
    if contract is None:
        return driver
    lacking = ""
    if not (isinstance(driver, type) and issubclass(driver, contract)):
        lacking = f"is no subclass of {contract.__module__}.{contract.__qualname__}"
    elif missing := sorted(getattr(driver, "__abstractmethods__", ())):
        lacking = f"does not define {', '.join(missing)}"
    if lacking:
        raise PluginLoadError(
            f"{origin} {lacking}",
            hint=f"docs/plugins/{origin.kind}.md has the contract.",
            kind=origin.kind,
            name=origin.name,
            distribution=origin.distribution,
        )
    made = _class_of(driver, StatefulOperator if issubclass(driver, StatefulOperator) else contract, origin)
    _MAKERS[made] = origin  # for errors in methods that are not checked
    return made


@cache
def _class_of(plain: type, contract: type, origin: Origin) -> type:
    """Make the subclass that checks every method with a rule."""
    names: dict[str, object] = {"__slots__": ()}
    names |= {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    for name, rule in CONTRACTS[contract].items():
        own, promised = inspect.getattr_static(plain, name), inspect.getattr_static(contract, name)
        if own is promised:  # the contract's default keeps the contract
            continue
        if isinstance(own, property):
            names[name] = property(_checked(_getter(own), name, rule, origin))
        elif inspect.isfunction(own):
            make = _awaited if inspect.iscoroutinefunction(promised) else _checked
            names[name] = make(_late(plain, name, own), name, rule, origin)
    if issubclass(contract, tuple(_KINDS.values())):
        names["__init__"] = _checked(inspect.getattr_static(plain, "__init__"), "__init__", _NOTHING, origin)
    made: type = type(plain)(plain.__name__, (plain,), names)
    return made


def _late(plain: type, name: str, own: Callable[..., object]) -> Callable[..., object]:
    """Return a function that looks the method up when it is called.

    A test may have replaced the method by then.
    """

    @wraps(own)
    def call(*args: object, **named: object) -> object:
        return getattr(plain, name)(*args, **named)

    return call


def _getter(own: property) -> Callable[[object], object]:
    assert own.fget is not None
    return own.fget


def _checked(plain: Callable[..., object], name: str, rule: Rule, origin: Origin) -> Callable[..., object]:
    passes: tuple[type[Exception], ...] = (FlameError, *rule.raises)

    @wraps(plain)
    def call(*args: object, **named: object) -> object:
        try:
            found = plain(*args, **named)
        except passes:
            raise
        except Exception as error:
            raise _raised(origin, name, error) from error
        return found if rule.wrong is None else _fitting(found, name, rule, origin)

    return call


def _awaited(plain: Callable[..., Any], name: str, rule: Rule, origin: Origin) -> Callable[..., object]:
    passes: tuple[type[Exception], ...] = (FlameError, *rule.raises)

    @wraps(plain)
    async def call(*args: object, **named: object) -> object:
        try:
            found = await plain(*args, **named)
        except passes:
            raise
        except Exception as error:
            raise _raised(origin, name, error) from error
        return found if rule.wrong is None else _fitting(found, name, rule, origin)

    return call


def _raised(origin: Origin, name: str, error: Exception) -> PluginContractError:
    return origin.error(f"raised {type(error).__name__} in {name}: {error}{user_lines(error)}", name)


def _fitting(found: object, name: str, rule: Rule, origin: Origin) -> object:
    assert rule.wrong is not None
    wrong = rule.wrong(found)
    if wrong is not None:
        raise origin.error(f"{wrong} ({name})", name)
    if rule.part is not None:
        _MAKERS[type(found)] = origin
    return found


def _no_position(found: object) -> str | None:
    """Return why a reader cannot go on from a value; None: it can."""
    if found is None:
        return "None, from which it would read all of it again"
    try:
        hash(found)
    except TypeError:
        return f"{shorten_repr(found)}, a {type(found).__qualname__}, which may change until it is stored"
    return None


def check_batch(reader: Reader, batch: object, left: int | None = None) -> None:
    """Raise an error if a reader has returned something that is no batch.

    Args:
        reader: The reader.
        batch: The value that it has returned.
        left: Number of records until the end that the partition had in an earlier run, if that run had reached it.

    Raises:
        PluginContractError: It is no batch. A value without a position would be lost, other faults would show later.
    """
    if batch is None:
        return
    wrong = None
    if not isinstance(batch, Batch):
        wrong = _not(batch, "Batch or None")
    else:
        try:
            values, positions, rejected = len(batch.values), len(batch.positions), len(batch.rejected)
        except TypeError as error:
            wrong = f"returned a batch whose values, positions or rejected records are no sequence: {error}"
        else:
            if values != positions:
                wrong = f"returned a batch of {values} values and {positions} positions"
            elif rejected and (odd := [one for one in batch.rejected if not isinstance(one, Rejected)]):
                wrong = f"returned a batch with {shorten_repr(odd[0])} among the rejected records, not a Rejected"
            elif not values and not rejected:
                wrong = "returned an empty batch; None is for the end"
            # The last of them, since jobs go on from there: to look at each would be work for every record.
            elif no := _no_position(batch.positions[values - 1] if values else batch.rejected[-1].position):
                wrong = f"returned a batch with the position {no}; a position is an int, a str, or a tuple of these"
            elif left is not None and values + rejected > left:  # their times are others' by now
                wrong = f"returned {values + rejected} records, where at most {left} were asked for"
    if wrong is not None:
        raise wrong_answer(reader, "read", wrong)


def check_sent(endpoint: Endpoint, sent: object) -> None:
    """Raise an error if `send_nowait` has returned anything but a bool.

    Raises:
        PluginContractError: It is no bool. Taken for False, the message would be sent twice.
    """
    if sent is not False and sent is not True:
        raise wrong_answer(endpoint, "send_nowait", _not(sent, "bool"))


def wrong_answer(part: object, call: str, what: str) -> PluginContractError:
    """Return the error of a part that has returned a wrong value."""
    return _origin_of(type(part)).error(f"{what} ({call})", call)


def blamed(error: BaseException) -> BaseException:
    """Return the error that names the plugin which broke its contract with `error`.

    Returns:
        `error` itself if no plugin did.
    """
    if isinstance(error, FlameError) or not isinstance(error, Exception):
        return error
    found: tuple[type, str] | None = None
    for frame, _ in walk_tb(error.__traceback__):
        code = frame.f_code
        of = type(frame.f_locals.get(code.co_varnames[0])) if code.co_argcount else object
        if of in _MAKERS:
            found = of, code.co_name
        elif frame.f_globals.get("__name__", "").startswith("flamecore."):
            found = None  # it has called the engine, or the engine's own code has failed
    if found is None:
        return error
    named = _raised(_MAKERS[found[0]], found[1], error)
    named.__cause__ = error
    return named


def _origin_of(part: type) -> Origin:
    return _MAKERS.get(part) or Origin("part", part.__qualname__, None, None, part.__module__)


def _observer(observer: object, origin: Origin) -> object:
    """Return an observer whose hooks are named in the errors that they raise."""
    hooks = {
        name: _checked(hook, name, _NOTHING, origin)
        for name in dir(observer)
        if name.startswith("flamestream_")
        and callable(hook := getattr(observer, name))
        # One that wraps the others is a generator, and not called to its end.
        and not inspect.isgeneratorfunction(hook)
    }
    return _Observer(observer, hooks)


class _Observer:
    """An observer with replaced hooks."""

    def __init__(self, observer: object, hooks: Mapping[str, Callable[..., object]]) -> None:
        self._observer = observer
        vars(self).update(hooks)

    def __getattr__(self, name: str) -> object:
        return getattr(self._observer, name)

    def __dir__(self) -> list[str]:
        return dir(self._observer)
