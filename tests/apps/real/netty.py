"""Netty's native epoll transport: an echo server and client. It registers sockets before they are
connected, and its own library makes the calls."""
from kit import EVERY, CACHE, HERE, Result, Skip, fetch, program
import shutil

VERSION = "4.1.115.Final"
PLACE = CACHE / "netty"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>netacc</groupId> <artifactId>echo</artifactId> <version>1</version>
  <dependencies>
    <dependency>
      <groupId>io.netty</groupId> <artifactId>netty-transport-native-epoll</artifactId>
      <version>{VERSION}</version> <classifier>linux-x86_64</classifier>
    </dependency>
  </dependencies>
</project>
"""


def build():
    if not shutil.which("mvn"):
        raise Skip("no mvn")
    PLACE.mkdir(parents=True, exist_ok=True)
    (PLACE / "pom.xml").write_text(POM)
    if not list(PLACE.glob(f"lib/*epoll-{VERSION}-linux*.jar")):
        fetch("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={PLACE}/lib", cwd=PLACE, timeout=600)
    fetch("javac", "-cp", f"{PLACE}/lib/*", "-d", PLACE, HERE / "real/NettyEcho.java")


@program("netty", "Netty 4.1, native epoll transport, echo, 8 connections", packages=("javac:default-jdk-headless",), prepare=build,
         sides=EVERY, share=95)
def netty(job):
    port, connections, rounds = job.port(), 8, 1000
    java = ("java", "-Djava.io.tmpdir=" + str(job.dir), "-cp", f"{PLACE}:{PLACE}/lib/*", "NettyEcho")
    job.start(*java, "server", port)
    job.listening(port)
    right = job.client(*java, "client", port, connections, rounds).split()[-1]
    return Result(output=int(right), errors=connections * rounds - int(right))
