#!/usr/bin/env python3
"""Connections to a server on another host, made in several ways; whether the claims to them were
proven by their SYNs.

    claims.py serve [uses] ADDRESS...   accepts there and echoes; `uses`: asks the kernel for the SYNs itself; "?" is answered by its counters
    claims.py inherit ADDRESS...        the same; the listening sockets are made without the library, and inherited by a program that has it
    claims.py call ADDRESS...           two connections to each, by a blocking and a nonblocking connect, one whose first SYN is lost and one by
                                        TCP Fast Open; speaks on all until they are on RDMA, and
                                        prints how many were, and how many claims were proven
"""

import errno
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading

PORT = 7000
TCP_SAVE_SYN, TCP_SAVED_SYN = 27, 28
SIZE = 256


def show(what):
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [os.environ["NETACC_LIB_DIR"] + "/netacc_ss", "--json", "-s", what, str(os.getpid())]
    return json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)


def receive(connection, size):
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data)) or sys.exit("the end of a connection")
    return data


def echo(connection):
    while data := connection.recv(SIZE):
        if data[:1] == b"?":
            counters = show("cnt")["counters"]
            data = " ".join(str(counters[f"rdma_claims_{how}"]) for how in ("proven", "unproven")).encode().ljust(SIZE)
        connection.sendall(data)


def accept(listener, uses):
    while True:
        connection, _ = listener.accept()
        if uses and not connection.getsockopt(socket.IPPROTO_TCP, TCP_SAVED_SYN, 200):
            os._exit(3)
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def serve(*addresses):
    uses = addresses[0] == "uses"
    for address in addresses[1 if uses else 0 :]:
        listener = socket.create_server((address, PORT), family=family(address), backlog=64)
        if uses:
            listener.setsockopt(socket.IPPROTO_TCP, TCP_SAVE_SYN, 1)
        threading.Thread(target=accept, args=(listener, uses)).start()
    print("listening", flush=True)


def inherit(*addresses):
    listeners = [socket.create_server((address, PORT), family=family(address), backlog=64) for address in addresses]
    for listener in listeners:
        listener.set_inheritable(True)
    run = os.environ["NETACC_LIB_DIR"] + "/netacc_run"
    os.execv(run, [run, sys.executable, "-B", __file__, "on", *(str(listener.fileno()) for listener in listeners)])


def on(*numbers):
    for number in numbers:
        threading.Thread(target=accept, args=(socket.socket(fileno=int(number)), False)).start()
    print("listening", flush=True)


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def speak(connection):
    connection.sendall(b"#" * SIZE)
    receive(connection, SIZE)


def connect(address, waits):
    connection = socket.socket(family(address))
    connection.setblocking(waits)
    if connection.connect_ex((address, PORT)) not in (0, errno.EINPROGRESS):
        sys.exit("no connection")
    return connection


def used(connection):
    """When it is one, and was answered."""
    select.select([], [connection], [])
    connection.setblocking(True)
    speak(connection)
    return connection


def sent_twice(connection):
    """tcpi_retransmits, before the connection is made."""
    return struct.unpack_from("B", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8), 2)[0] > 0


def lossy(address):
    """A connection whose first SYN does not arrive."""
    tc = "tc qdisc add dev net0 clsact && tc filter add dev net0 egress matchall action drop"
    subprocess.run(tc, shell=True, check=True)
    connection = connect(address, False)
    while not sent_twice(connection):
        pass
    subprocess.run("tc qdisc del dev net0 clsact", shell=True, check=True)
    return used(connection)


def with_first_bytes(address):
    """A connection that begins by a send."""
    connection = socket.socket(family(address))
    connection.sendto(b"#" * SIZE, socket.MSG_FASTOPEN, (address, PORT))
    receive(connection, SIZE)
    return connection


def call(*addresses):
    connections = [used(connect(address, waits)) for address in addresses for waits in (True, False)]
    connections += [lossy(addresses[0]), with_first_bytes(addresses[1])]
    count = 0
    for _ in range(200):
        for connection in connections * 10:
            speak(connection)
        count = sum((s["tx_path"], s["rx_path"]) == ("rdma", "rdma") for s in show("sock")["sockets"])
        if count == len(connections):
            break
    connections[0].sendall(b"?" * SIZE)
    proven, unproven = receive(connections[0], SIZE).split()
    print(f"{count} on RDMA, {int(proven)} proven, {int(unproven)} not")


{"serve": serve, "inherit": inherit, "on": on, "call": call}[sys.argv[1]](*sys.argv[2:])
