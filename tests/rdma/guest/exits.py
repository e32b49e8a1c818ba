#!/usr/bin/env python3
"""A process ends with bytes under way over RDMA, while its peer is stopped.

    exits.py CASE SECONDS           runs one case of CASES between two processes at 10.0.0.1, under the library, the reader stopped for so
                                    long; prints what came to be
    exits.py read N                 accepts N connections, echoes until it is told that the other end is about to go, stops itself, and
                                    prints what came then, and how each connection ended
    exits.py write CASE             the other end
"""
import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

ADDRESS, BYTES = ("10.0.0.1", 7000), 512
RUN = [os.environ["NETACC_LIB_DIR"] + "/netacc_run", "python3", "-B", __file__]

# Connections, writes on each, bytes of a write.
CASES = {
    "return": (1, 100, 1000),
    "return-one-write": (1, 1, 100_000),
    "_exit": (1, 100, 1000),
    "several": (6, 40, 1000),
    "half-closed": (2, 20, 1000),
    "exec": (2, 20, 1000),
    "exec-that-fails": (1, 20, 1000),
    "unread": (1, 20, 1000),
    "keeper-killed": (1, 100, 1000),
    "forked-child": (1, 20, 1000),
    "forked-child-open": (1, 20, 1000),
    "forked-child-killed": (1, 20, 1000),
    "many": (64, 10, 1000),
    "keeper-unwanted": (1, 100, 1000),
    "keeper-refused": (1, 100, 1000),
    "keeper-filtered": (1, 100, 1000),
    "term": (1, 100, 1000),
}


def whole(connection):
    message = b""
    while len(message) < BYTES and (part := connection.recv(BYTES - len(message))):
        message += part
    return message


def pattern(i, n):
    return bytes((i * 7 + at * 13 + at // 251) % 256 for at in range(n))


def read(n):
    listener = socket.create_server(ADDRESS)
    connections = [listener.accept()[0] for _ in range(n)]
    listener.close()
    told = 0

    def echo(connection):
        nonlocal told
        while (message := whole(connection))[:1] != b"g":
            connection.sendall(message)
        connection.sendall(b"g%7d" % os.getpid() + bytes(BYTES - 8))
    threads = [threading.Thread(target=echo, args=(c,)) for c in connections]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.kill(os.getpid(), signal.SIGSTOP)
    ends = []
    for i, connection in enumerate(connections):
        came, end = b"", "EOF"
        try:
            while part := connection.recv(65536):
                came += part
        except OSError as e:
            end = errno.errorcode[e.errno]
        if came != pattern(0, len(came)):
            end += " with wrong bytes"
        ends.append(f"{len(came)} {end}")
    print(", ".join(f"{ends.count(e)} x {e}" for e in sorted(set(ends))))


def paths():
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    ss = os.environ["NETACC_LIB_DIR"] + "/netacc_ss"
    shown = subprocess.run([ss, "--json", "-s", "sock", str(os.getpid())], env=env, stdout=subprocess.PIPE)
    return [(s["tx_path"], s["rx_path"]) for s in json.loads(shown.stdout)["sockets"]]


def is_stopped(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


# Of x86_64, by number. A keeper's maker is a clone without CLONE_THREAD.
CLONE, CLONE_THREAD = 56, 0x10000
# What a keeper would like to do and can do without: unshare, setsid, chdir, pidfd_open, signalfd4,
# kill.
WISHES = [272, 112, 80, 434, 289, 62]


def refuse(calls, unless=0):
    """From here on these system calls fail with EPERM, unless their first argument has one of these
    bits. Nothing is killed for them."""
    load, equal, bits, answer = 0x20, 0x15, 0x45, 0x06
    program = [(load, 0, 0, 0)]
    for call in calls:
        # (Not that one: behind its four lines. What is loaded then is its number again.)
        program += [(equal, 0, 4, call), (load, 0, 0, 16), (bits, 1, 0, unless), (answer, 0, 0, 0x50000 | errno.EPERM), (load, 0, 0, 0)]
    program.append((answer, 0, 0, 0x7FFF0000))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filters = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    # In all threads: PR_SET_NO_NEW_PRIVS; seccomp(SECCOMP_SET_MODE_FILTER,
    # SECCOMP_FILTER_FLAG_TSYNC).
    if libc.prctl(38, 1, 0, 0, 0) or libc.syscall(317, 1, 1, filters):
        sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")


def write(case):
    n, writes, size = CASES[case]
    connections = [socket.create_connection(ADDRESS) for _ in range(n)]
    end = time.monotonic() + 60
    while True:
        for c in connections:
            c.sendall(b"m" * BYTES)
            whole(c)
        if paths().count(("rdma", "rdma")) == n:
            break
        if time.monotonic() > end:
            sys.exit(f"not on RDMA: {paths()}")
    for c in connections:
        c.sendall(b"g" * BYTES)
        reader = int(whole(c)[1:8]) if case != "unread" else 0
    if case == "unread":
        # (Its answer is what lies unread.)
        reader = int(connections[0].recv(BYTES, socket.MSG_PEEK)[1:8])
    while not is_stopped(reader):
        time.sleep(0.01)
    data = pattern(0, writes * size)
    for c in connections:
        for i in range(writes):
            c.sendall(data[i * size:(i + 1) * size])
        if case == "half-closed":
            c.shutdown(socket.SHUT_WR)
    if case == "keeper-refused":
        refuse([CLONE], CLONE_THREAD)
    if case == "keeper-filtered":
        refuse(WISHES)
    if case in ("return", "unread", "forked-child-open", "forked-child-killed"):
        # Open to the end. (Python closes what it knows of.)
        for c in connections:
            c.detach()
    if case == "_exit":
        os._exit(0)
    if case.startswith("exec"):
        try:
            os.execv("/bin/true" if case == "exec" else "/bin/none", ["true"])
        except OSError:
            # It goes on, and so do its connections.
            for c in connections:
                c.sendall(pattern(0, 2 * len(data))[len(data):])
    if case == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if case.startswith("forked-child"):
        child = os.fork()
        if child == 0:
            # The first closes what it has before its end.
            if case == "forked-child-open":
                os._exit(0)
            if case == "forked-child-killed":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(0)
        os.waitpid(child, 0)
        print("keepers of a child:", len(keepers()))
    sys.exit(0)


def keepers():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                text = f.read()
        except OSError:
            continue
        name, rest = text.rsplit(")", 1)
        if name.split("(", 1)[1] == "netacc-keeper":
            found.append((int(pid), rest.split()))
    return found


def files(pid):
    """What is neither a socket nor the kernel's: a pipe of the keeper's own."""
    names = []
    for n in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # (closed meanwhile)
            names.append(os.readlink(f"/proc/{pid}/fd/{n}"))
    return [name for name in names if not name.startswith(("socket:", "anon_inode:"))]


def wait(what, seconds, value):
    end = time.monotonic() + seconds
    while not value():
        if time.monotonic() > end:
            return print("not in time:", what)
        time.sleep(0.02)


def run(case, seconds):
    reader = subprocess.Popen(RUN + ["read", str(CASES[case][0])], stdout=subprocess.PIPE, text=True)
    wait("the reader listens", 30, lambda: subprocess.run(["ss", "-Hltn", "sport = 7000"], stdout=subprocess.PIPE).stdout)
    # What the writer has printed is read to its end, as by a shell's $(...).
    env = os.environ | ({"NACC_RDMA_KEEPER_S": "0"} if case == "keeper-unwanted" else {})
    writer = subprocess.Popen(RUN + ["write", case], stdout=subprocess.PIPE, text=True, env=env)
    wait("the reader stands still", 60, lambda: is_stopped(reader.pid))
    stopped_at = time.monotonic()
    said = writer.stdout.read()
    read_at = time.monotonic()
    status = writer.wait()
    if time.monotonic() - read_at > 1 or time.monotonic() - stopped_at > 8:
        print("the writer ended late")
    if said:
        print(said.strip())
    if status not in (0, -signal.SIGTERM if case == "term" else 0):
        print("status", status)
    there = keepers()
    print("keepers:", len(there))
    for pid, fields in there:
        # Its own session, no terminal, a child of init's; nothing of the writer's is left open or
        # mapped.
        if case != "keeper-filtered" and (int(fields[3]) != pid or fields[4] != "0" or fields[1] != "1"):
            print("keeper's parent, group, session, terminal:", fields[1:5])
        wait("the keeper has closed what it does not need", 5, lambda: len(files(pid)) <= 1)
        if case == "keeper-killed":
            os.kill(pid, signal.SIGKILL)
    if os.environ.get("EXITS_SHOW"):
        for pid, _ in there:
            subprocess.run(f"ls -l /proc/{pid}/fd; cat /proc/{pid}/maps; grep -E 'Rss|Vm' /proc/{pid}/status; ps -ef | grep '[n]etacc-k'", shell=True)
    time.sleep(seconds)
    os.kill(reader.pid, signal.SIGCONT)
    print(reader.communicate()[0].strip())
    wait("the keeper ends", 20, lambda: not keepers())


if sys.argv[1] == "read":
    read(int(sys.argv[2]))
elif sys.argv[1] == "write":
    write(sys.argv[2])
else:
    run(sys.argv[1], float(sys.argv[2]))
