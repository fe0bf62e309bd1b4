"""Output and refusals of `flamestream certs init`."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flamecore.cli import main
from flamecore.suggest import install_command

pytest.importorskip("cryptography", reason="the extra `certs` is not installed")

from cryptography import x509

from flamestream_certs.folder import ROLES

EVERYTHING = {f"{name}{ending}" for name in ("ca", *ROLES) for ending in (".pem", ".key")}


def init(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["certs", "init", *map(str, arguments)])


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def named(found: x509.Certificate) -> x509.SubjectAlternativeName:
    return found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def shaken(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Perform a TLS handshake in memory. Raises ssl.SSLError if one side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=host),
    ]
    for _ in range(10):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for side in sides:
        side.do_handshake()


def context(folder: Path, role: str, purpose: int) -> ssl.SSLContext:
    made = ssl.SSLContext(purpose)
    made.load_verify_locations(folder / "ca.pem")
    made.load_cert_chain(folder / f"{role}.pem", folder / f"{role}.key")
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    return made


def test_keys_are_for_their_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "certs"
    done = init(folder)
    assert done.exit_code == 0, done.output
    assert {path.name for path in folder.iterdir()} == EVERYTHING
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.key")} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_each_role_is_accepted_by_each_and_is_good_for_the_hosts(tmp_path: Path) -> None:
    assert init(tmp_path, "--hosts", "node1.example, 10.0.0.5", "--hosts", "fd00::7", "--days", "7").exit_code == 0
    hosts = {"localhost", "127.0.0.1", "::1", "node1.example", "10.0.0.5", "fd00::7"}
    for role in ROLES:
        found = certificate(tmp_path / f"{role}.pem")
        names = named(found)
        assert {str(name) for name in names.get_values_for_type(x509.DNSName)} | {
            str(name) for name in names.get_values_for_type(x509.IPAddress)
        } == hosts
        assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"urn:flamestream:{role}"]
        assert timedelta(days=6) < found.not_valid_after_utc - datetime.now(UTC) <= timedelta(days=7)
        server = context(tmp_path, role, ssl.PROTOCOL_TLS_SERVER)
        for other in ROLES:
            shaken(server, context(tmp_path, other, ssl.PROTOCOL_TLS_CLIENT), "10.0.0.5")
    with pytest.raises(ssl.SSLCertVerificationError, match="node2"):
        shaken(server, context(tmp_path, "client", ssl.PROTOCOL_TLS_CLIENT), "node2.example")


def test_another_authority_is_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert init(tmp_path / name).exit_code == 0
    server = context(tmp_path / "one", "worker", ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server, context(tmp_path / "two", "worker", ssl.PROTOCOL_TLS_CLIENT), "localhost")


@pytest.mark.parametrize(
    ("arguments", "listens"),
    [((), "127.0.0.1"), (("--hosts", "node1.example"), "node1.example"), (("--hosts", "fd00::7"), "[fd00::7]")],
)
def test_printed_settings_can_be_pasted(tmp_path: Path, arguments: tuple[str, ...], listens: str) -> None:
    folder = tmp_path / 'a "quoted" \\ folder'
    done = init(folder, *arguments)
    tables: dict[str, Any] = tomllib.loads(done.stdout)["transport"]
    assert tables["grpc"]["listen"] == listens
    assert tables["nats"]["servers"] == [f"tls://{listens}:4222"]
    for table in tables.values():
        files = [Path(table[key]) for key in ("tls_ca", "tls_certificate", "tls_key")]
        assert files == [folder / name for name in ("ca.pem", "supervisor.pem", "supervisor.key")]
        assert all(path.is_absolute() and path.exists() for path in files)


def test_the_result_can_be_json(tmp_path: Path) -> None:
    facts = json.loads(init(tmp_path, "--json", "--days", "3").stdout)
    assert facts["days"] == 3
    assert sorted(facts["roles"]) == sorted(ROLES)
    for pair in (*facts["roles"].values(), {"ca": facts["ca"]}):
        assert all(Path(path).exists() for path in pair.values())


@pytest.mark.parametrize("there", ["ca.key", "client.pem"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    done = init(tmp_path)
    assert done.exit_code == 2
    assert there in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


def old(folder: Path, *lacking: str) -> None:
    """Make a folder that lacks roles, as one that was made before they were there."""
    assert init(folder, "--days", "30").exit_code == 0
    for role in lacking:
        for path in folder.glob(f"{role}.*"):
            path.unlink()


def test_a_folder_gets_the_roles_that_it_lacks_from_its_own_authority(tmp_path: Path) -> None:
    old(tmp_path, "operator")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    said = init(tmp_path)
    assert said.exit_code == 2
    assert "it lacks operator.pem and operator.key" in said.stderr
    assert f"flamestream certs init {tmp_path} --missing" in said.stderr
    assert init(tmp_path, "--missing", "--days", "300").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == EVERYTHING
    assert all(path.read_bytes() == content for path, content in before.items())
    shaken(
        context(tmp_path, "supervisor", ssl.PROTOCOL_TLS_SERVER),
        context(tmp_path, "operator", ssl.PROTOCOL_TLS_CLIENT),
        "localhost",
    )
    made = certificate(tmp_path / "operator.pem")
    assert named(made).get_values_for_type(x509.UniformResourceIdentifier) == ["urn:flamestream:operator"]
    assert made.not_valid_after_utc == certificate(tmp_path / "ca.pem").not_valid_after_utc


def test_nothing_is_missing_where_all_is_there(tmp_path: Path) -> None:
    old(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert "lacks" not in init(tmp_path).stderr
    assert init(tmp_path, "--missing").exit_code == 0
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("broken", ["absent", "no PEM", "another key", "a certificate of a worker"])
def test_without_its_authority_a_folder_gets_nothing(tmp_path: Path, broken: str) -> None:
    old(tmp_path, "operator")
    other = {"no PEM": "text", "another key": (tmp_path / "worker.key").read_text()}
    if broken == "absent":
        (tmp_path / "ca.key").unlink()
    elif broken in other:
        (tmp_path / "ca.key").write_text(other[broken])
    else:
        (tmp_path / "ca.pem").write_bytes((tmp_path / "worker.pem").read_bytes())
    said = init(tmp_path, "--missing")
    assert said.exit_code == 2
    assert "authority" in said.stderr
    assert not (tmp_path / "operator.pem").exists()


def test_a_file_behind_a_link_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "ca.key").symlink_to(tmp_path / "elsewhere")
    assert init(tmp_path).exit_code == 2
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("host", ["", "a b", "host:80", "-x", "tcp://host", "größe", "a..b", "*"])
def test_an_impossible_host_is_refused(tmp_path: Path, host: str) -> None:
    done = init(tmp_path / "certs", "--hosts", f"good.example,{host}")
    assert done.exit_code == 2
    assert repr(host) in done.stderr
    assert not (tmp_path / "certs").exists()


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = init(tmp_path / "file" / "certs")
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr


def test_a_certificate_says_when_it_expires(tmp_path: Path) -> None:
    assert init(tmp_path, "--days", "0").exit_code == 2
    assert init(tmp_path).exit_code == 0
    assert ip_address("::1") in named(certificate(tmp_path / "worker.pem")).get_values_for_type(x509.IPAddress)


def test_without_the_extra_the_error_names_it() -> None:
    code = """if True:
        import sys
        sys.modules["cryptography"] = None
        from flamecore.cli import main
        main(["certs", "init", "/nowhere/certs"])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert install_command("flamestream", "certs") in done.stderr
