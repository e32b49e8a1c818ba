"""Java: an echo by NIO's Selector; clients by SocketChannel and java.net.Socket."""
from kit import EVERY, CACHE, HERE, Result, fetch, program


def build():
    CACHE.mkdir(parents=True, exist_ok=True)
    fetch("javac", "-d", CACHE / "java", HERE / "real/Echo.java")


@program("java", "Java, NIO echo server, 8 clients", packages=("javac:default-jdk-headless",), prepare=build, sides=EVERY,
         share=95, ratio=1.0, rounds=3)
def java(job):
    port = job.port()
    job.start("java", "-cp", CACHE / "java", "Echo", "server", port)
    job.listening(port)
    requests, errors, seconds = job.client("java", "-cp", CACHE / "java", "Echo", "client", port, 8, 3).split()[-3:]
    return Result(errors=int(errors), rate=int(requests) / float(seconds))
