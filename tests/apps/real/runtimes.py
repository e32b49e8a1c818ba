"""Echo servers and clients on the runtimes and event libraries that people use. Some make their
calls past libc: these are right, on TCP, and netacc_ss says why."""
import functools
import shutil
from kit import CACHE, EVERY, HERE, Result, Skip, fetch, program

RUNTIMES = HERE.parent / "runtimes"
BUILT = CACHE / "runtimes"
CONNECTIONS, ROUNDS = 8, 1000


def rust(*names):
    """Builds programs of tests/runtimes; cargo gets the crates."""
    if not shutil.which("cargo"):
        raise Skip("no cargo")
    fetch("cargo", "build", "-q", "--release", "--manifest-path", RUNTIMES / "Cargo.toml", "--target-dir", BUILT,
          "--features", ",".join(names), *(f"--bin={name}" for name in names), timeout=1200)
    for name in names:
        shutil.copy2(BUILT / "release" / name, BUILT / f"echo-{name}")


def c(name, *flags, out=None):
    rust("mio")
    fetch("cc", "-O1", "-o", BUILT / f"echo-{out or name}", RUNTIMES / f"c/{name}.c", *flags)


def go():
    rust("mio")
    if not shutil.which("go"):
        raise Skip("no go")
    fetch("go", "build", "-o", BUILT / "echo-go", ".", cwd=RUNTIMES / "go", env={"CGO_ENABLED": "1"})


def echo(job, server, *more, client="mio", rust_server=False):
    port = job.port()
    job.start(BUILT / f"echo-{server}", *(["server", port] if rust_server else [port, *more]))
    job.listening(port)
    right = job.client(BUILT / f"echo-{client}", "client", port, CONNECTIONS, ROUNDS)
    return Result(output=int(right), errors=CONNECTIONS * ROUNDS - int(right))


def of_rust(name, title, **settings):
    @program(name, title, prepare=functools.partial(rust, name), sides=EVERY, **settings)
    def work(job):
        return echo(job, name, client=name, rust_server=True)


def of_c(name, title, source, *flags, arguments=(), packages=()):
    @program(name, title, prepare=functools.partial(c, source, *flags, out=name), packages=("cc:gcc", *packages), sides=EVERY)
    def work(job):
        return echo(job, name, *arguments)


of_rust("smol", "smol (Rust), echo, 8 connections")
of_rust("async-std", "async-std (Rust), echo, 8 connections")
of_rust("tokio", "tokio (Rust), echo, 8 connections", share=95)
of_rust("mio", "mio (Rust), echo, 8 connections", share=95)
UV, EVENT, URING = "/usr/include/uv.h:libuv1-dev", "/usr/include/event2/event.h:libevent-dev", "/usr/include/liburing.h:liburing-dev"
of_c("libuv", "libuv, echo server", "uv", "-luv", packages=(UV,))
of_c("libevent", "libevent, echo server", "event", "-levent", packages=(EVENT,))
for way, title in (("poll", "POLL_ADD, recv and send"), ("all", "all by the ring")):
    of_c(f"liburing-{way}", f"liburing, {title}", "uring", "-luring", arguments=(way,), packages=(URING,))
    of_c(f"liburing-static-{way}", f"liburing linked in, {title}", "uring", "-l:liburing.a", arguments=(way,), packages=(URING,))


@program("go-cgo", "Go with cgo, echo server", prepare=go, packages=("cc:gcc",), sides=EVERY)
def go_cgo(job):
    return echo(job, "go")
