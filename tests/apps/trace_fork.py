"""A parent and a child share a connection, and tracing begins in the parent alone, for trace.sh.

The child goes on with the connection, shuts it down and ends, at every step of which it would look
at what the parent has noted of the trace in memory that both share. NETACC is the argument.
"""

import os, socket, subprocess, sys, time


def echo(connection, times):
    for _ in range(times):
        connection.sendall(b"x" * 64)
        assert connection.recv(64, socket.MSG_WAITALL) == b"x" * 64


def serve(listener):
    connection = listener.accept()[0]
    while message := connection.recv(65536):
        connection.sendall(message)


listener = socket.create_server(("127.0.0.1", 0))
server = os.fork()
if not server:
    serve(listener)
    os._exit(0)
connection = socket.create_connection(listener.getsockname())
listener.close()
# (One that is still being agreed on when its process forks stays on TCP, and is never traced.)
deadline = time.monotonic() + 20
while '"fd"' not in subprocess.run(
        [sys.argv[1] + "_ss", "--path", "shm", "--json", str(os.getpid())], capture_output=True,
        text=True, env={**os.environ, "LD_PRELOAD": ""}).stdout:
    assert time.monotonic() < deadline, "the connection is not accelerated"
    echo(connection, 200)
begun, go = os.pipe()
child = os.fork()
if not child:
    os.read(begun, 1)
    echo(connection, 200)
    time.sleep(0.01)
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(64) == b""
    connection.close()
    os._exit(0)
subprocess.run([sys.argv[1], "cfg", "set", "NACC_TRACE", "1", "-p", str(os.getpid())], check=True,
               env={**os.environ, "LD_PRELOAD": ""}, stdout=subprocess.DEVNULL)
# (It is the parent's next events that give the connection a ring.)
deadline = time.monotonic() + 20
while "found" not in subprocess.run(
        [sys.argv[1], "trace", "show", "-p", str(os.getpid())], capture_output=True, text=True,
        env={**os.environ, "LD_PRELOAD": ""}).stdout:
    assert time.monotonic() < deadline, "the parent is not traced"
    echo(connection, 10)
os.write(go, b"x")
assert os.waitpid(child, 0)[1] == 0, "the child"
assert os.waitpid(server, 0)[1] == 0, "the server"
