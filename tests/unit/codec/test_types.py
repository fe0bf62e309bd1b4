"""Types that a flow registers, classes that change, and what the errors of payloads say."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, make_dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import pytest

import flamecore as fc
from flamecore.errors import CodecError, GraphError
from flamecore.model import messages
from flamecore.model.expansion import expand
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.types import NAMES
from flamecore.runtime.state.format import Binding, Section, decode_part, encode_part, encode_section

SERIALISED = {"transport.inproc.serialise": True}


class Money:
    """A class that the codec knows nothing of."""

    def __init__(self, cents: int, currency: str = "EUR") -> None:
        self.cents = cents
        self.currency = currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(self.cents)

    def __repr__(self) -> str:
        return f"Money({self.cents}, {self.currency!r})"


MONEY = fc.TypeCodec(Money, "money", lambda money: (money.cents, money.currency), lambda parts: Money(*parts))


@dataclass(frozen=True)
class Order:
    item: str
    price: Money


class Line(NamedTuple):
    text: str


def returned(value: Any, codec: Codec) -> Any:
    return codec.decode(codec.encode(value))


# -- registered types -------------------------------------------------------------------------


def price(line: str) -> Money:
    return Money(len(line))


def test_a_flow_takes_a_type_with_a_codec() -> None:
    flow = fc.Flow("prices")
    flow.codec(Money, encode=lambda money: vars(money), decode=lambda facts: Money(**facts))
    flow.source("lines", str).rebalance().map(price).key_by(lambda money: money.cents % 3).group(2).sink("pairs")
    lines = {"lines": ["x" * length for length in range(30)]}
    outputs = flow.run(lines, workers=3, settings=SERIALISED)["pairs"]
    assert outputs == flow.run(lines)["pairs"]
    assert {type(money) for pair in outputs for money in pair} == {Money}


def test_a_library_brings_a_codec() -> None:
    flow = fc.Flow("prices")
    assert flow.codec(MONEY) is Money
    flow.source("lines", str).map(price).key_by(lambda money: money.cents).count().sink("counts")
    assert flow.run({"lines": ["abc"]}, workers=2, settings=SERIALISED)["counts"] == [(3, 1)]
    assert [codec.name for codec in flow.graph().codecs] == ["money"]
    assert [codec.name for codec in expand(flow.graph()).codecs] == ["money"]


def test_a_class_without_a_hint_is_declared_by_a_decorator() -> None:
    flow = fc.Flow("points")

    @flow.codec
    @dataclass(frozen=True)
    class Spot:
        x: int
        line: Line

    numbers = flow.source("numbers", int)
    numbers.map(lambda number: Spot(number, Line("a"))).key_by(lambda spot: spot.x % 5).group(1).sink("spots")
    spots = flow.run({"numbers": range(20)}, workers=4, settings=SERIALISED)["spots"]
    assert spots == [(Spot(number, Line("a")),) for number in range(20)]


def test_a_registered_type_is_found_wherever_it_stands() -> None:
    codec = Codec([Order], [MONEY])
    for value in (
        Money(1),
        [Money(1)] * 20,
        Order("x", Money(2)),
        {Money(1): {Money(2)}},
        [(1, Money(1)), "x", Money(2)],
    ):
        assert returned(value, codec) == value


def test_a_codec_may_use_types_of_other_codecs() -> None:
    class Purse:
        def __init__(self, contents: list[Money]) -> None:
            self.contents = contents

    purse = fc.TypeCodec(Purse, "purse", lambda purse: purse.contents, Purse)
    codec = Codec(codecs=[MONEY, purse])
    assert returned(Purse([Money(1), Money(2)]), codec).contents == [Money(1), Money(2)]


def test_an_earlier_version_is_read_by_its_own_function() -> None:
    earlier = Codec(codecs=[fc.TypeCodec(Money, "money", lambda money: money.cents, Money)])
    data = earlier.encode([Money(1), Money(2)])
    later = fc.TypeCodec(
        Money, "money", lambda m: (m.cents, m.currency), lambda p: Money(*p), 2, {1: lambda cents: Money(cents, "DEM")}
    )
    assert Codec(codecs=[later]).decode(data) == [Money(1, "DEM"), Money(2, "DEM")]
    assert returned(Money(3), Codec(codecs=[later])) == Money(3)


def test_an_unknown_version_is_refused() -> None:
    data = Codec(codecs=[fc.TypeCodec(Money, "money", lambda money: money.cents, Money, 5)]).encode(Money(1))
    with pytest.raises(CodecError, match=r"'money' in version 5.*reads 1") as caught:
        Codec(codecs=[MONEY]).decode(data)
    assert "older=" in caught.value.hint
    assert caught.value.type_name == "money"


def test_an_unknown_name_is_refused() -> None:
    data = Codec(codecs=[MONEY]).encode(Money(1))
    with pytest.raises(CodecError, match=r"'money', which was not declared") as caught:
        Codec([Line]).decode(data)
    assert f"{Line.__module__}:Line" in caught.value.hint, "says what is known"
    assert "!Report" not in caught.value.hint, "and not what is the engine's"


def test_a_failing_function_of_a_codec_is_an_error() -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("no")

    with pytest.raises(CodecError, match=r"'money' failed on a Money: ZeroDivisionError: no") as caught:
        Codec(codecs=[fc.TypeCodec(Money, "money", broken, Money)]).encode([Money(1)] * 3)
    assert isinstance(caught.value.cause, ZeroDivisionError)
    assert 'in broken: raise ZeroDivisionError("no")' in str(caught.value)
    with pytest.raises(CodecError, match=r"'money' failed on stored values: ZeroDivisionError: no") as caught:
        Codec(codecs=[fc.TypeCodec(Money, "money", lambda money: 1, broken)]).decode(
            Codec(codecs=[MONEY]).encode(Money(1))
        )
    assert isinstance(caught.value.cause, ZeroDivisionError)
    assert 'in broken: raise ZeroDivisionError("no")' in str(caught.value)


def test_a_codec_that_encodes_to_its_own_type_is_refused() -> None:
    with pytest.raises(CodecError, match="nested"):
        Codec(codecs=[fc.TypeCodec(Money, "money", lambda money: (money,), Money)]).encode(Money(1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"encode": vars}, "needs both"),
        ({"decode": Money}, "needs both"),
        ({"encode": vars, "decode": Money, "version": 0}, "count from 1"),
        ({"encode": vars, "decode": Money, "version": 2, "older": {2: Money}}, "not all before 2"),
        ({"encode": vars, "decode": Money, "name": "!money"}, "begin with"),
        ({"encode": vars, "decode": Money, "formerly": [""]}, "must not be empty"),
        ({"version": 2}, "versions"),
    ],
)
def test_senseless_registrations_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        fc.Flow("prices").codec(Money, **arguments)


@pytest.mark.parametrize("kind", [int, str, tuple, dict, 5, "Money"])
def test_types_that_cannot_be_registered_are_refused(kind: Any) -> None:
    with pytest.raises(GraphError, match=r"has a fixed encoding|is no class"):
        fc.Flow("prices").codec(kind, encode=repr, decode=str, name="x")


def test_every_message_has_a_fixed_name_in_bytes() -> None:
    kinds = {kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, tuple)}
    assert kinds <= set(NAMES)
    assert len(set(NAMES.values())) == len(NAMES)


def test_a_class_without_fields_needs_functions() -> None:
    flow = fc.Flow("prices")
    flow.codec(Money)
    flow.source("lines", str).map(price).sink("prices")
    with pytest.raises(CodecError, match=r"Money.*not made of fields") as caught:
        flow.run({"lines": []})
    assert "encode=…" in caught.value.hint


def test_two_types_of_one_name_are_refused() -> None:
    with pytest.raises(CodecError, match=r"two types are called 'money'.*Money.*Line"):
        Codec(codecs=[MONEY, fc.TypeCodec(Line, "money")])
    with pytest.raises(CodecError, match=r"two types are called 'Decimal'"):
        Codec(codecs=[fc.TypeCodec(Money, "Decimal", vars, Money)])


def test_a_type_is_registered_once() -> None:
    flow = fc.Flow("prices")
    flow.codec(MONEY)
    with pytest.raises(GraphError, match="codec for Money already"):
        flow.codec(Money, encode=vars, decode=Money)


def test_a_registered_name_is_not_given_to_a_declared_class() -> None:
    name = f"{Line.__module__}:Line"
    codec = Codec([Line], [fc.TypeCodec(Money, "money", lambda money: money.cents, Money, formerly=(name,))])
    assert returned(Money(5), codec) == Money(5)
    with pytest.raises(CodecError, match="same name"):
        codec.encode(Line("x"))


def test_a_standard_type_may_get_another_codec() -> None:
    from decimal import Decimal

    codec = Codec(codecs=[fc.TypeCodec(Decimal, "cents", lambda d: int(d * 100), lambda cents: Decimal(cents) / 100)])
    assert returned([Decimal("1.234")] * 2, codec) == [Decimal("1.23")] * 2


# -- classes that change ----------------------------------------------------------------------


def record(kind: str, name: str, **fields: Any) -> Any:
    """Make a class of a kind, with fields.

    A value is the field's default; `...` says that there is none.
    """
    specs = {each: (int, default) for each, default in fields.items()}
    if kind == "struct":
        made: Any = msgspec.defstruct(
            name, [(each, hint) if default is ... else (each, hint, default) for each, (hint, default) in specs.items()]
        )
    elif kind == "tuple":
        made = NamedTuple(name, [(each, hint) for each, (hint, _) in specs.items()])  # type: ignore[misc]
        defaults = {each: default for each, (_, default) in specs.items() if default is not ...}
        made.__new__.__defaults__ = tuple(defaults.values())
        made._field_defaults = defaults
    else:
        made = make_dataclass(
            name,
            [
                (each, hint) if default is ... else (each, hint, field(default=default))  # type: ignore[misc]
                for each, (hint, default) in specs.items()
            ],
            frozen=kind == "frozen",
            slots=kind == "slots",
        )
    made.__module__ = "app"
    made.__qualname__ = name
    return made


KINDS = pytest.mark.parametrize("kind", ["dataclass", "frozen", "slots", "tuple", "struct"])


@KINDS
def test_a_field_with_a_default_may_be_added(kind: str) -> None:
    before, after = record(kind, "State", a=..., b=...), record(kind, "State", a=..., b=..., c=7)
    data = Codec([before]).encode([before(1, 2), before(3, 4)])
    assert Codec([after]).decode(data) == [after(1, 2, 7), after(3, 4, 7)]
    assert Codec([after]).decode(Codec([before]).encode(before(1, 2))) == after(1, 2)


def test_a_default_factory_makes_a_default_for_each() -> None:
    before = make_dataclass("State", [("a", int)])
    after = make_dataclass("State", [("a", int), ("b", list, field(default_factory=list))])
    before.__module__ = after.__module__ = "app"
    one, other = Codec([after]).decode(Codec([before]).encode([before(1), before(2)]))
    assert one == after(1, [])
    assert one.b is not other.b
    old = msgspec.defstruct("S", [("a", int)], module="app")
    new = msgspec.defstruct("S", [("a", int), ("b", list, msgspec.field(default_factory=list))], module="app")
    one, other = Codec([new]).decode(Codec([old]).encode([old(1), old(2)]))
    assert one == new(1, [])
    assert one.b is not other.b


@KINDS
def test_a_field_without_a_default_may_not_be_added(kind: str) -> None:
    before, after = record(kind, "State", a=...), record(kind, "State", a=..., b=...)
    data = Codec([before]).encode([before(1)])
    with pytest.raises(CodecError, match=r"'app:State' have no field 'b', and it has no default") as caught:
        Codec([after]).decode(data)
    assert caught.value.type_name == "app:State"
    assert caught.value.path == "b"
    assert "default" in caught.value.hint


@KINDS
def test_a_removed_field_is_an_error(kind: str) -> None:
    before, after = record(kind, "State", total=..., b=...), record(kind, "State", totals=0)
    data = Codec([before]).encode(before(1, 2))
    with pytest.raises(CodecError, match=r"'app:State' have a field 'total', which the class has no more") as caught:
        Codec([after]).decode(data)
    assert "Did you mean 'totals'" in caught.value.hint


@KINDS
def test_fields_go_by_name(kind: str) -> None:
    before, after = record(kind, "State", a=..., b=...), record(kind, "State", b=..., a=...)
    assert Codec([after]).decode(Codec([before]).encode(before(1, 2))) == after(2, 1)


@KINDS
def test_a_renamed_class_is_read_under_its_former_name(kind: str) -> None:
    before, after = record(kind, "State", a=...), record(kind, "Total", a=...)
    data = Codec([before]).encode([before(1)])
    with pytest.raises(CodecError, match="'app:State', which was not declared") as caught:
        Codec([after]).decode(data)
    assert "app:Total" in caught.value.hint
    assert "formerly=['app:State']" in caught.value.hint
    flow = fc.Flow("totals")
    flow.codec(after, formerly=["app:State"])
    assert Codec(codecs=flow._graph.codecs).decode(data) == [after(1)]
    flow = fc.Flow("totals")
    flow.codec(after, name="app:State")
    codec = Codec(codecs=flow._graph.codecs)
    assert codec.decode(data) == [after(1)]
    assert codec.encode([after(1)]) == data, "a name that is given stays"


def test_a_class_that_got_a_codec_refuses_earlier_bytes() -> None:
    data = Codec([Line]).encode(Line("x"))
    for codec in (
        fc.TypeCodec(Money, f"{Line.__module__}:Line", vars, Money),
        fc.TypeCodec(enum.Enum("E", "A B"), f"{Line.__module__}:Line"),
    ):
        with pytest.raises(CodecError, match=r"were made field by field, and are read otherwise"):
            Codec(codecs=[codec]).decode(data)


def test_members_of_an_enum_go_by_name() -> None:
    before = enum.Enum("Colour", {"RED": 1, "BLUE": 2}, module="app")
    after = enum.Enum("Colour", {"BLUE": "b", "RED": "r", "GREEN": "g"}, module="app")
    data = Codec([before]).encode([before.RED, before.BLUE])
    assert Codec([after]).decode(data) == [after.RED, after.BLUE]
    gone = enum.Enum("Colour", {"BLUE": 1, "REDDISH": 2}, module="app")
    with pytest.raises(CodecError, match=r"'app:Colour' have a member 'RED', which it has no more") as caught:
        Codec([gone]).decode(data)
    assert "alias" in caught.value.hint
    alias = enum.Enum("Colour", {"REDDISH": 2, "RED": 2, "BLUE": 1}, module="app")
    assert Codec([alias]).decode(data) == [alias.REDDISH, alias.BLUE]


def test_state_of_a_changed_class_is_not_called_damaged() -> None:
    before, after = record("dataclass", "State", a=...), record("dataclass", "State", a=..., b=...)
    writer = Codec([before])
    section = Section("totals", ["key"], [before(1)], [])
    blob = encode_part(writer, [("totals", encode_section(writer, section))], "part/1", Binding())
    with pytest.raises(CodecError, match=r"blob part/1 of the state.*'app:State' have no field 'b'") as caught:
        decode_part(Codec([after]), blob, "part/1", Binding(), ("totals",))
    assert (caught.value.type_name, caught.value.path) == ("app:State", "b")
    assert "default" in caught.value.hint


def test_a_subclass_is_a_class_of_its_own() -> None:
    @dataclass(frozen=True)
    class Special(Order):
        discount: int = 0

    codec = Codec([Order], [MONEY])
    with pytest.raises(CodecError, match=r"Special.*not declared"):
        codec.encode(Special("x", Money(1)))


# -- what errors say --------------------------------------------------------------------------


@dataclass
class Unnamed:
    number: int


def cents(line: str) -> Any:
    return Unnamed(len(line))


def test_the_error_of_a_payload_names_the_operation() -> None:
    flow = fc.Flow("prices")
    prices = flow.source("lines", str).map(lambda line: cents(line) if line else None, name="price")
    prices.key_by(lambda price: price and price.number).count(name="per-price").sink("out")
    unchecked = {"job.check_types": False, "job.check_mutation": False}
    with pytest.raises(CodecError) as caught:  # the first records, which are checked before, have none
        flow.run({"lines": [""] * 200 + ["a", "ab", "abc"]}, workers=3, settings=SERIALISED | unchecked)
    error = caught.value
    assert error.vertex == "per-price"
    assert error.type_name == "Unnamed"
    assert "'per-price', from 'price'" in error.what
    assert "Unnamed(number=" in error.what
    assert "flow.codec(Unnamed)" in error.hint


def test_the_error_of_an_output_names_the_sink() -> None:
    flow = fc.Flow("prices")
    flow.source("lines", str).map(lambda line: {"when": [1, deque(line)]}).sink("queues")
    with pytest.raises(CodecError) as caught:
        flow.run({"lines": ["ab"]}, settings=SERIALISED)
    error = caught.value
    assert error.vertex == "queues"
    assert "on the way to sink 'queues'" in error.what
    assert error.path == ".values()[…]"
    assert "encode=…" in error.hint


def test_one_process_takes_any_type() -> None:
    flow = fc.Flow("prices")
    flow.source("lines", str).map(cents).key_by(lambda p: p.number).count().sink("out")
    assert flow.run({"lines": ["a", "ab"]}, workers=2)["out"] == [(1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Unnamed(1), ""),
        ((1, Unnamed(1)), "[1]"),
        ([[1], [Unnamed(1)]], "[…][…]"),
        (Order("x", Unnamed(1)), ".price"),  # type: ignore[arg-type]
        ([{"a": Unnamed(1)}] * 5, "[…]['a']"),
        ({Line("a"): (1, {2: Unnamed(1)})}, ".values()[1].values()"),
        ({(1, Fraction(1)): 1}, ".keys()[1]"),
        ([1, "a", None, (Fraction(1),)], "[…][0]"),
    ],
)
def test_errors_name_the_place_in_the_payload(value: Any, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        Codec([Order, Line], [MONEY]).encode(value)
    assert caught.value.path == path
    assert path in caught.value.what


def test_a_field_that_was_never_set_is_an_error() -> None:
    @dataclass
    class Late:
        a: int
        b: int = field(init=False)

    for value in (Late(1), [Late(1)] * 9):
        with pytest.raises(CodecError, match=r"Late.*'b'") as caught:
            Codec([Late]).encode(value)
        assert caught.value.type_name.endswith("Late")


def test_values_whose_repr_fails_are_refused() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise ValueError("no")

    with pytest.raises(CodecError, match="repr fails"):
        Codec().encode(Shy())


def test_unresolvable_hints_do_not_hide_the_others() -> None:
    def function(line: str, other: NotHere) -> Iterable[Order]:  # type: ignore[name-defined]  # noqa: F821
        return []

    flow = fc.Flow("orders")
    flow.source("lines", str).flat_map(function).sink("orders")
    codec = Codec.of(flow.graph())
    codec.register(MONEY)
    assert returned(Order("x", Money(1)), codec) == Order("x", Money(1))


def test_recursive_hints_end() -> None:
    class Alias:
        """As the statement `type Alias = …` makes them."""

        __value__: Any

    alias = Alias()
    alias.__value__ = dict[str, alias] | list[Line]  # type: ignore[valid-type]
    codec = Codec([list[alias]])  # type: ignore[valid-type]
    assert returned(Line("x"), codec) == Line("x")


def test_wrapped_functions_declare_types_too() -> None:
    from functools import partial

    class Maker:
        def __call__(self, line: str) -> Line:
            return Line(line)

    def make(number: int, line: str) -> Order:
        return Order(line, Money(number))

    for function in (Maker(), partial(make, 1), Maker().__call__):
        flow = fc.Flow("lines")
        flow.source("lines", str).map(function).sink("out")  # type: ignore[arg-type]
        value = function("x")  # type: ignore[operator]
        codec = Codec.of(flow.graph())
        codec.register(MONEY)
        assert returned(value, codec) == value


def test_classes_of_the_engine_cross_under_its_own_names() -> None:
    own = Codec(own=[Line])
    data = own.encode(Line("x"))
    assert own.decode(data) == Line("x")
    assert type(own.decode(data)) is Line
    with pytest.raises(CodecError, match="'!Line', which was not declared"):
        Codec([Line]).decode(data)


def test_the_error_of_several_payloads_names_where_the_first_that_cannot_cross_was_going() -> None:
    flow = fc.Flow("orders")
    flow.source("lines", str).sink("out")
    codec = Codec.of(flow.graph())
    pieces = [(0, 0, True, [b"a"], ["x"]), (1, 0, True, [b"b", b"c"], ["y", Unnamed(1)])]
    for given, name in ((pieces, "out"), ([(0, 0, True, [b"d"], [Unnamed(2)]), *pieces], "lines")):
        with pytest.raises(CodecError) as caught:
            codec.encode(messages.Items(given, ()))
        assert caught.value.vertex == name
