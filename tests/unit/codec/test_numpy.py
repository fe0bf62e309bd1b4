"""Arrays and scalars of numpy cross as they are; the codec does not import numpy before a payload brings it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.errors import CodecError
from flamecore.runtime.codec.codec import Codec

if TYPE_CHECKING:
    import numpy as np
else:
    np = pytest.importorskip("numpy", reason="numpy is not installed")

CODEC = Codec()

NUMBERS = ["?", "i1", "u1", "<i2", ">i2", "<u4", ">u8", "<i8", "q", "Q", "<f2", ">f4", "<f8", "g", "<c8", ">c16", "G"]
SIMPLE = [*NUMBERS, "S3", "<U2", ">U5", "V4", "<M8[ns]", ">M8[D]", "<m8[s]", "<M8[25us]"]
POINT = np.dtype([("x", "<i4"), ("y", ">f8")])
STRUCTURES = [
    POINT,
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [2, 0], "itemsize": 16}),
    np.dtype([("inner", POINT, (2, 3)), ("name", "U4")]),
    np.dtype([(("the title", "t"), "<i4"), ("s", "S2")]),
]


def returned(value: Any) -> Any:
    return CODEC.decode(CODEC.encode(value))


def alike(one: Any, other: Any) -> bool:
    """Return whether two arrays or scalars are the same to the last bit and flag."""
    if type(one) is not type(other):
        return False
    if isinstance(one, str | bytes):
        return list(one) == list(other)  # numpy's own comparison overlooks zeros at the end
    return (
        one.dtype == other.dtype
        and one.dtype.str == other.dtype.str
        and one.dtype.char == other.dtype.char
        and one.dtype.isalignedstruct == other.dtype.isalignedstruct
        and one.shape == other.shape
        and one.flags.c_contiguous == other.flags.c_contiguous
        and one.flags.f_contiguous == other.flags.f_contiguous
        and one.flags.writeable == other.flags.writeable
        and one.tobytes("A") == other.tobytes("A")
    )


def filled(shape: tuple[int, ...], dtype: Any, order: Any = "C") -> np.ndarray[Any, Any]:
    """Return an array whose bytes count up."""
    array = np.zeros(shape, dtype, order)
    data = (bytes(range(1, 128)) * (array.nbytes // 127 + 1))[: array.nbytes]
    array[...] = np.ndarray(shape, array.dtype, data, order=order)  # but for what lies between fields
    return array


@pytest.mark.parametrize("dtype", [*SIMPLE, *STRUCTURES], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (3, 0, 2), (2, 1, 4)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(dtype: Any, shape: tuple[int, ...], order: str) -> None:
    unicode = np.dtype(dtype).kind == "U" or "U" in str(dtype)
    array: Any = np.zeros(shape, dtype, order) if unicode else filled(shape, dtype, order)
    if np.dtype(dtype).kind == "U":
        array[...] = "añ"
    for value in (array, array[...]):
        value.flags.writeable = False
        assert alike(returned(value), value)
        assert alike(returned([array] * 10)[9], array)
    twice = returned([(1, array), (2, array)])
    assert alike(twice[1][1], array)


def test_a_view_becomes_an_array_of_its_own() -> None:
    base = np.arange(24).reshape(4, 6)
    for view in (base[::2, ::3], base[::-1], base.T[1:], np.broadcast_to(base[0], (3, 6))):
        got = returned(view)
        assert np.array_equal(got, view)
        assert got.dtype == view.dtype


def test_an_array_can_be_written_to_if_it_could_be() -> None:
    array = np.arange(3)
    got = returned(array)
    got[0] = 7
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        returned(array)[0] = 7


SCALARS = [
    *(np.bool_(True), np.int8(-1), np.uint16(7), np.int64(5), np.longlong(5), np.ulonglong(6)),
    *(np.float16(0.5), np.float32(-0.0), np.float64("nan"), np.longdouble(1) / 3),
    *(np.complex64(1 + 2j), np.complex128(complex(-0.0, np.inf)), np.clongdouble(1j)),
    *(np.str_("a\0"), np.bytes_(b"b\0"), np.str_(""), np.void(b"abcd")),
    *(np.datetime64("2020-01-02"), np.datetime64("NaT", "ns"), np.timedelta64(5, "ms")),
    np.array([5]).view("<m8")[0],  # a time without a unit: data has some, though newer numpys deprecate to make one
    filled((1,), POINT)[0],
    filled((1,), STRUCTURES[3])[0],
]


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: f"{type(value).__name__}-{value.dtype}")
def test_scalars_come_back(value: Any) -> None:
    assert alike(returned(value), value)
    assert all(alike(got, value) for got in returned([value] * 12))
    mixed = [value, 1.0, *SCALARS, None] * 3
    assert all(a is b or a == b or alike(a, b) for a, b in zip(returned(mixed), mixed, strict=True))
    assert [type(got) for got in returned(mixed)] == [type(one) for one in mixed]


def test_scalars_with_fields_share_nothing() -> None:
    got = returned([filled((1,), POINT)[0]] * 3)
    got[0]["x"] = 77
    assert got[1]["x"] != 77


@given(
    st.sampled_from(["<f8", ">i4", "<u2", "S3"]),
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from("CF"),
    st.integers(1, 12),
)
def test_arrays_of_any_shape_come_back(dtype: str, shape: list[int], order: str, count: int) -> None:
    array = filled(tuple(shape), dtype, order)
    assert all(alike(got, array) for got in returned([array] * count))


class Own(np.ndarray):  # type: ignore[type-arg]
    """A class of the user's."""


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.array([1, "a"], object), "object"),
        (np.array([(1, None)], [("a", "i4"), ("b", "O")]), "object"),
        (np.array(1.5, object), "object"),
        (np.zeros(3).view(Own), "Own"),
        (np.ma.masked_array([1, 2], [True, False]), "MaskedArray"),
        (np.rec.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]), "recarray"),
        (np.void(b""), "V"),
        (np.dtype("i4"), "dtype"),
        (np.array(["a"], np.dtypes.StringDType()), "StringDType")
        if hasattr(np.dtypes, "StringDType")
        else (len, "len"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_would_come_back_changed_are_refused(value: Any, named: str) -> None:
    for wrapped in (value, [value] * 9, {"a": (value,)}):
        with pytest.raises(CodecError, match=named) as caught:
            CODEC.encode(wrapped)
        assert caught.value.hint


def test_claimed_sizes_are_checked_before_memory_is_allocated() -> None:
    import tracemalloc

    data = CODEC.encode(np.zeros(4))
    for claimed in (b"\xce\xff\xff\xff\xff", b"\x7f\x01"):
        at = data.index(b"\x91\x04") + 1  # the one dimension of the shape
        forged = (
            data[: at - 2] + bytes((data[at - 2] + len(claimed) - 1,)) + data[at - 1 : at] + claimed + data[at + 1 :]
        )
        tracemalloc.start()
        with pytest.raises(CodecError):
            CODEC.decode(forged)
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


@pytest.mark.parametrize(
    "description", ["O", "<i4,<i4", "|V99999999999", "f8", "", "{", '{"names":["a"]}', "U" * 70_000, "<x9", 5, None]
)
def test_only_known_texts_are_data_types(description: Any) -> None:
    from flamecore.runtime.codec.numpy import restore

    with pytest.raises(CodecError):
        restore(description)


def test_numpy_is_not_imported_for_other_payloads() -> None:
    program = """
        import sys
        from flamecore.runtime.codec.codec import Codec

        codec = Codec()
        for value in (1, [1.5] * 20, {"a": (b"", None)}, 2 + 1j):
            assert codec.decode(codec.encode(value)) == value
        try:
            codec.encode(sys)
        except Exception as error:
            print(type(error).__name__)
        print("numpy" in sys.modules)
    """
    from textwrap import dedent

    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["CodecError", "False"]


def test_without_numpy_its_values_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from flamecore.runtime.codec import numpy as arrays

    array, scalar = CODEC.encode(np.zeros(3)), CODEC.encode(np.float64(1))
    monkeypatch.setitem(sys.modules, "numpy", None)
    arrays._entry.cache_clear()
    for data in (array, scalar):
        with pytest.raises(CodecError, match="not installed") as caught:
            Codec().decode(data)
        assert "pip install numpy" in caught.value.hint
    monkeypatch.undo()
    arrays._entry.cache_clear()
