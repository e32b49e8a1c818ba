"""A server with a thread for each connection, and a client, for trace.sh.

server PORT [--epoll]: echoes messages. client PORT CONNECTIONS: goes to and fro on all of them
until they end, in one thread each. Prints `ready` when each has gone so a hundred times, for each
that ends `answered`, its port, and when the last answer came (CLOCK_MONOTONIC), and `over`. Both
are at $TRACE_ADDRESS (127.0.0.1). alone [NAME]: has a connection with itself, under that name and
with all its memory locked, until it is traced, and is killed. confined: has one until then, forbids
itself to take names of files away, and ends with status 7. sink PORT: receives, and sends nothing.
stream PORT: sends for ever. other PORT: is a client until it is traced, and becomes another
program. short PORT COUNT: makes so many connections of one request each.
"""

import ctypes, glob, os, select, socket, struct, sys, threading, time

ADDRESS = os.environ.get("TRACE_ADDRESS", "127.0.0.1")


def echo(connection):
    while message := connection.recv(65536):
        connection.sendall(message)


def serve(port, with_epoll):
    listener = socket.create_server((ADDRESS, port), backlog=200)
    if not with_epoll:
        while True:
            threading.Thread(target=echo, args=[listener.accept()[0]], daemon=True).start()
    epoll, known = select.epoll(), {}
    epoll.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                connection = listener.accept()[0]
                known[connection.fileno()] = connection
                epoll.register(connection, select.EPOLLIN)
            elif message := known[fd].recv(65536):
                known[fd].sendall(message)
            else:
                epoll.unregister(fd)
                known.pop(fd).close()


def talk(connection, ready, ended):
    port, answered = connection.getsockname()[1], 0
    for n in range(sys.maxsize):
        try:
            connection.sendall(b"x" * 64)
            if not connection.recv(64):
                break
        except OSError:
            break
        answered = time.monotonic_ns()
        if n == 100:
            ready.release()
    ended.append(f"answered {port} {answered}")


def become_another(port):
    connection = socket.create_connection(("127.0.0.1", port))
    end = time.monotonic() + 60
    while not glob.glob(f"/dev/shm/netacc-trace.*.{os.getpid()}") and time.monotonic() < end:
        connection.sendall(b"x" * 64)
        connection.recv(64)
        time.sleep(0.001)
    # (One that is not there first: then it goes on, and is killed by nobody.)
    try:
        os.execv("/no/such/program", ["program"])
    except OSError:
        print("goes on", flush=True)
    sys.stdin.readline()
    os.execv("/bin/sleep", ["sleep", "60"])


def call(port, count):
    ready, ended = threading.Semaphore(0), []
    connections = [socket.create_connection((ADDRESS, port)) for _ in range(count)]
    threads = [threading.Thread(target=talk, args=[c, ready, ended], daemon=True) for c in connections]
    for thread in threads:
        thread.start()
    for _ in threads:
        ready.acquire()
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    print(*ended, "over", sep="\n", flush=True)
    sys.stdin.readline()


def alone(name):
    libc = ctypes.CDLL(None)
    if name:
        libc.prctl(15, name)
        libc.mlockall(2)
    until_traced()
    os.kill(os.getpid(), 9)


def until_traced():
    listener = socket.create_server(("127.0.0.1", 0))
    a = socket.create_connection(listener.getsockname())
    b = listener.accept()[0]
    deadline, place = time.monotonic() + 20, os.environ.get("NACC_TRACE_DIR", "/dev/shm")
    while not glob.glob(f"{place}/netacc-trace.*.{os.getpid()}") and time.monotonic() < deadline:
        for one, other in (a, b), (b, a):
            one.sendall(b"x")
            other.recv(1)


def confined():
    """With a filter (seccomp(2)) under which unlink and unlinkat end the process."""
    until_traced()
    call, equal, answer = 0x20, 0x15, 0x06
    allow, kill = 0x7FFF0000, 0x80000000
    unlink, unlinkat = (87, 263) if os.uname().machine == "x86_64" else (35, 35)
    words = [(call, 0, 0, 0), (equal, 1, 0, unlink), (equal, 0, 1, unlinkat), (answer, 0, 0, kill), (answer, 0, 0, allow)]
    program = b"".join(struct.pack("HBBI", *word) for word in words)
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(words), ctypes.addressof(code)))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header):
        sys.exit("no filter")
    sys.exit(7)


def stream(port):
    connection = socket.create_connection(("127.0.0.1", port))
    while True:
        connection.sendall(b"x" * 65536)


def sink(port):
    connection = socket.create_server(("127.0.0.1", port)).accept()[0]
    while connection.recv(65536):
        pass


def short(port, count):
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"x" * 64)
            assert connection.recv(64)


if sys.argv[1] == "server":
    serve(int(sys.argv[2]), "--epoll" in sys.argv)
elif sys.argv[1] == "alone":
    alone(" ".join(sys.argv[2:]).encode().decode("unicode_escape").encode("latin-1"))
elif sys.argv[1] == "confined":
    confined()
elif sys.argv[1] == "sink":
    sink(int(sys.argv[2]))
elif sys.argv[1] == "stream":
    stream(int(sys.argv[2]))
elif sys.argv[1] == "other":
    become_another(int(sys.argv[2]))
elif sys.argv[1] == "short":
    short(int(sys.argv[2]), int(sys.argv[3]))
else:
    call(int(sys.argv[2]), int(sys.argv[3]))
