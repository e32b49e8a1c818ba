#!/usr/bin/env python3
"""What was asked of the kernel for a connection's packets, and what becomes of it over RDMA.

    packets.py serve ADDRESS   accepts there and echoes
    packets.py call ADDRESS    a connection of a traffic class: prints that of the device's packets, both ways, then that of another class,
                               then where it is when it has a mark
"""

import json
import os
import socket
import subprocess
import sys

PORT = 7000
SIZE = 256
ROCE = 4791


def path(connection):
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [os.environ["NETACC_LIB_DIR"] + "/netacc_ss", "--json", "-s", "sock", str(os.getpid())]
    sockets = json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)["sockets"]
    return next((s["tx_path"], s["rx_path"], s["reason"]) for s in sockets if s["fd"] == connection.fileno())


def serve(address):
    listener = socket.create_server((address, PORT))
    print("listening", flush=True)
    connection, _ = listener.accept()
    while data := connection.recv(SIZE):
        connection.sendall(data)


def speak(connection, times=1):
    for _ in range(times):
        connection.sendall(b"#" * SIZE)
        left = SIZE
        while left:
            left -= len(connection.recv(left)) or sys.exit("the end of the connection")


def until(connection, expected):
    for _ in range(500):
        speak(connection, 10)
        if path(connection)[:2] == (expected, expected):
            return
    sys.exit(f"not on {expected}: {path(connection)}")


def classes(connection):
    """The bytes of service of the device's packets meanwhile, outgoing and incoming."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)) as wire:
        speak(connection, 20)
        wire.setblocking(False)
        seen = {True: set(), False: set()}
        try:
            while True:
                packet, source = wire.recvfrom(64)
                if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_UDP and int.from_bytes(packet[22:24], "big") == ROCE:
                    seen[source[2] == socket.PACKET_OUTGOING].add(packet[1])
        except BlockingIOError:
            return sorted(seen[True]), sorted(seen[False])


def call(address):
    connection = socket.socket()
    connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x68)
    connection.connect((address, PORT))
    until(connection, "rdma")
    print("class 104:", *classes(connection))
    connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x20)
    speak(connection, 10)
    until(connection, "rdma")
    print("class 32:", *classes(connection))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 7)
    until(connection, "tcp")
    print("with a mark:", *path(connection))


{"serve": serve, "call": call}[sys.argv[1]](sys.argv[2])
