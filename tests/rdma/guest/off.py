"""Connections of a server whose acceleration is turned off while they are used, between two hosts.

off.py server [PORT]: sends back what comes to that port (7000), a thread for each connection.
off.py client HOST [PORT [ENOUGH]]: four connections, whose threads wait in recv, poll, select and
epoll, and whose bytes are compared, until the file ENOUGH (`/rig/exchange/enough`) is there.
"""
import os
import socket
import sys
import threading

sys.path.insert(0, "/rig/tree/tests/apps")
import off_app


def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def serve(port="7000"):
    listener = socket.create_server(("0.0.0.0", int(port)))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def client(host, port="7000", enough="/rig/exchange/enough"):
    failed = []

    def run(how):
        try:
            with socket.create_connection((host, int(port))) as connection:
                while not os.path.exists(enough):
                    off_app.exchange(how, connection, 3000)
        except Exception as error:
            failed.append(f"{how}: {error!r}")

    ways = ("recv", "poll", "select", "epoll")
    threads = [threading.Thread(target=run, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("failed:", *failed) if failed else print("every byte")


if __name__ == "__main__":
    (serve if sys.argv[1] == "server" else client)(*sys.argv[2:])
