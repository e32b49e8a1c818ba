"""Connections of a server whose acceleration is turned off while they are used, between two hosts.

off.py server: sends back what comes to port 7000, a thread for each connection.
off.py client HOST: four connections, whose threads wait in recv, poll, select and epoll, and whose
bytes are compared, until `/rig/exchange/enough` is there.
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


def serve():
    listener = socket.create_server(("0.0.0.0", 7000))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def client(host):
    failed = []

    def run(how):
        try:
            with socket.create_connection((host, 7000)) as connection:
                while not os.path.exists("/rig/exchange/enough"):
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
    serve() if sys.argv[1] == "server" else client(sys.argv[2])
