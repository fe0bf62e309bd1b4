"""Options and subjects: errors name the key, and show no secret."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.transport import TransportContext
from flamecore.errors import ConfigError, MissingDependencyError
from flamecore.runtime.config.options import options_of
from flamestream_nats import NatsTransport, Options, flamestream_transport
from flamestream_nats.channels.subjects import Subjects, safe
from flamestream_nats.options import check_seed
from flamestream_nats.registry import NatsRegistry


def test_the_module_provides_the_transport() -> None:
    assert flamestream_transport() is NatsTransport
    assert NatsTransport.name == "nats"
    made = NatsTransport(None, TransportContext())
    assert made.options == Options()
    assert made.capabilities.multi_process
    assert made.capabilities.serialises


@pytest.mark.parametrize("address", ["nats://node1:4222", "tls://node1:4222"])
def test_addresses_of_jobs_are_those_of_servers(address: str) -> None:
    said = NatsTransport.address_of(address)
    assert said.control == ""
    for driver, options in ((NatsTransport, said.options), (NatsRegistry, NatsRegistry.address_of(address))):
        assert address.partition("://")[0] in (driver.schemes or ())
        assert options_of(driver, options, "").servers == (address,)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"servers": ()}, "servers"),
        ({"servers": ("http://127.0.0.1:4222",)}, "servers"),
        ({"servers": ("127.0.0.1:4222",)}, "servers"),
        ({"servers": ("nats://127.0.0.1:99999",)}, "servers"),
        ({"servers": ("nats://",)}, "servers"),
        ({"prefix": ""}, "prefix"),
        ({"prefix": "a..b"}, "prefix"),
        ({"prefix": "a.*"}, "prefix"),
        ({"prefix": "a b"}, "prefix"),
        ({"user": "ann"}, "user"),
        ({"password": "secret"}, "user"),
        ({"tls_key": "key.pem"}, "tls_certificate"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NatsTransport(Options(**options), TransportContext())
    assert caught.value.path == f"transport.nats.{key}"
    assert caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"window_frames": 0}, {"window_bytes": 2**40}, {"heartbeat_s": 0}, {"send_timeout_s": -1}, {"server": "x"}],
)
def test_options_of_a_wrong_kind_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Options)


def test_a_key_pair_needs_a_package_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(MissingDependencyError) as caught:
        check_seed(Options(nkey_seed="SUAsecret"))
    assert (caught.value.module, caught.value.name) == ("nkeys", "nats")
    assert "pip install 'nats-py[nkeys]'" in caught.value.hint
    assert "secret" not in str(caught.value)


def test_options_can_be_printed() -> None:
    options = Options(servers=("nats://ann:pw1@h:1", "h:2"), token="pw2", user="ann", password="pw3", nkey_seed="pw4")
    text = repr(options)
    assert "pw" not in text.replace("password", "")
    assert "servers=('nats://h:1', 'nats://h:2')" in text
    assert "token='***'" in text


def test_subjects_are_readable() -> None:
    subjects = Subjects("flamestream", "word-count-1a2b", 3)
    assert subjects.at("worker/0") == "flamestream.word-count-1a2b.3.at.worker.0"
    assert subjects.node("w1-ab", "c4") == "flamestream.word-count-1a2b.3.node.w1-ab.c4"
    assert subjects.location("flamestream.word-count-1a2b.3.node.w1-ab.c4") == ("w1-ab", "c4")
    for other in ("flamestream.word-count-1a2b.3.node.w1-ab", "flamestream.other.3.node.a.b", "", "x.y.z.node.a.b.c"):
        assert subjects.location(other) == ("", "")


@given(st.text(max_size=300), st.text(max_size=300))
def test_safe_texts_are_tokens_and_stay_apart(one: str, other: str) -> None:
    for text in (one, other):
        token = safe(text)
        assert token
        assert len(token) <= 100
        assert token.isascii()
        assert not set(token) & set(" .*>\t\r\n")
    assert (safe(one) == safe(other)) == (one == other)
