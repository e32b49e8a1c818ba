"""An echo server, and clients that are confined, for confined.sh.

confined_app.py server PORT
confined_app.py client PORT [CALL...]: sets a filter that refuses these system calls (EPERM), goes
to and fro until the library has decided, and says where its connection is. Then for each line of
standard input it goes to and fro again, and says `done`, or `stalled` after two seconds.
confined_app.py early PORT: a client of confined_late.c.
"""
import ctypes
import os
import platform
import socket
import struct
import sys
import time

LEVEL, INFO, LENGTH = 0x6E61, 1, 312
# (`no-record`: where the process can have no memory for what netacc_ss shows.)
UNDECIDED = ("not-started", "negotiating", "agreed", "no-record")
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
X86 = platform.machine() == "x86_64"
NUMBERS = {"memfd_create": (319, 279), "eventfd2": (290, 19), "preadv2": (327, 286)}


def number(call):
    return NUMBERS[call][0 if X86 else 1]


def refuse(calls):
    """A filter that answers these calls by EPERM (linux/filter.h, linux/seccomp.h)."""
    load, equal, answer, allowed, refused = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
    program = [(load, 0, 0, 0)]
    for call in calls:
        program += [(equal, 0, 1, number(call)), (answer, 0, 0, refused)]
    program.append((answer, 0, 0, allowed))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filters), 0, 0)):
        if libc.prctl(*arguments) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


def why(connection):
    """Where the connection is, and why, by the library's own answer (include/netacc.h)."""
    try:
        answer = connection.getsockopt(LEVEL, INFO, LENGTH)
    except OSError:
        return "tcp absent"
    _, _, tx, rx, *_ = struct.unpack_from("=6I", answer)
    reason = answer[24:56].split(b"\0")[0].decode()
    return f"{('tcp', 'shm', 'rdma')[tx]} {reason}" if tx == rx else "on its way"


def use(connection, rounds):
    for n in range(rounds):
        sent = os.urandom(99) + bytes([n & 255])
        connection.sendall(sent)
        got = b""
        while len(got) < len(sent):
            part = connection.recv(65536)
            if not part:
                sys.exit("the server has ended")
            got += part
        if got != sent:
            sys.exit("other bytes have come back")


def decided(connection):
    """Goes to and fro until the library has decided."""
    end = time.monotonic() + 20
    use(connection, 40)
    while time.monotonic() < end and why(connection).split()[-1] in (*UNDECIDED, "way"):
        use(connection, 1)
    return why(connection)


def serve(port):
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)


def client(port, calls):
    if calls:
        refuse(calls)
    connection = socket.create_connection(("127.0.0.1", port))
    print(decided(connection), flush=True)
    for _ in sys.stdin:
        connection.settimeout(2)
        try:
            use(connection, 10)
            print("done", flush=True)
        except TimeoutError:
            print("stalled", flush=True)


def early(port):
    connection = socket.create_connection(("127.0.0.1", port))
    answer = b"."
    while answer[:1] == b".":
        connection.sendall(b"ping")
        answer = connection.recv(100)
    time.sleep(0.2)
    connection.sendall(b"late")
    connection.recv(100)


if __name__ == "__main__":
    what, where, *more = sys.argv[1:]
    {"server": serve, "client": lambda port: client(port, more), "early": early}[what](int(where))
