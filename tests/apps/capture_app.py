#!/usr/bin/env python3
"""What tests/apps/capture.sh runs, and what it reads captures with.

    capture_app.py server PORT [--v6]
    capture_app.py client PORT FILE REQUESTS MOST PAUSE [--v6] [--bulk] [--exec] [--rdma]
    capture_app.py lives PORT FILE CONNECTIONS REQUESTS MOST PAUSE
    capture_app.py read CAPTURE [FILE...]
    capture_app.py ended CAPTURE FILE...

The server answers each request with the same bytes backwards. The client writes its port to FILE,
and what it has sent and received to FILE.sent and FILE.received; with --rdma it says little until
it is on RDMA (NETACC_SS is asked). `lives` is so many, one behind the other, FILE.0 and so on.
`read` compares a capture with such files: of each direction its bytes (`whole`, or `part: N gaps`),
flags and comments, as JSON. A byte that is wrong, or a gap that no comment tells, is an error.
`ended`: status 0 once a capture has the end of each direction, or says that the end is not in it.
CAPTURE_HOST: the address that is listened at or connected to, instead of the loopback's.
"""

import json, os, pathlib, random, re, socket, struct, subprocess, sys, threading, time


def receive(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def host(family):
    return os.environ.get("CAPTURE_HOST", "::1" if family == socket.AF_INET6 else "127.0.0.1")


def server(port, family):
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host(family), port))
    listener.listen(64)

    def serve(s):
        with s:
            try:
                while True:
                    head = receive(s, 8)
                    body = receive(s, int(head, 16))
                    s.sendall(head + body[::-1])
            except (EOFError, OSError):
                pass

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def is_on_rdma():
    said = subprocess.run([os.environ["NETACC_SS"], "--path", "rdma", "--json", str(os.getpid())],
                          capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": ""})
    return '"fd"' in said.stdout


def client(port, file, requests, most, pause, family, options):
    s = socket.create_connection((host(family), port))
    pathlib.Path(file).write_text(str(s.getsockname()[1]))
    rng = random.Random(port)
    with open(f"{file}.sent", "wb") as sent, open(f"{file}.received", "wb") as received:
        def lengths():
            deadline = time.monotonic() + 60
            while "--rdma" in options and not is_on_rdma() and time.monotonic() < deadline:
                yield 1
            for _ in range(requests):
                yield most if "--bulk" in options else rng.randrange(1, most)

        for length in lengths():
            request = b"%08x" % length + rng.randbytes(length)
            sent.write(request)
            sent.flush()
            s.sendall(request)
            reply = receive(s, len(request))
            assert reply[8:] == request[8:][::-1]
            received.write(reply)
            received.flush()
            time.sleep(pause)
    if "--exec" in options:
        os.execvp("sleep", ["sleep", "30"])
    s.close()


def blocks(data):
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        assert length % 4 == 0 and struct.unpack_from("<I", data, at + length - 4)[0] == length
        yield kind, data[at + 8:at + length - 4]
        at += length


def options(body):
    at = 0
    while at + 4 <= len(body):
        code, length = struct.unpack_from("<HH", body, at)
        if code == 0:
            return
        yield code, body[at + 4:at + 4 + length]
        at += 4 + (length + 3) // 4 * 4


def packets(data):
    """Source port, destination port, sequence number, flags, payload, comment."""
    for kind, body in blocks(data):
        if kind != 6:
            continue
        kept = struct.unpack_from("<I", body, 12)[0]
        packet, rest = body[20:20 + kept], body[20 + (kept + 3) // 4 * 4:]
        tcp = packet[20:] if packet[0] >> 4 == 4 else packet[40:]
        from_port, to_port, seq, _, offset, flags = struct.unpack_from(">HHIIBB", tcp)
        said = "".join(value.decode() for code, value in options(rest) if code == 1)
        yield from_port, to_port, seq, flags, tcp[offset >> 4 << 2:], said


class Direction:
    def __init__(self):
        self.next, self.gaps, self.bytes, self.flags, self.said = 0, 0, 0, "", []

    def add(self, seq, flags, payload, said, truth):
        self.flags += "".join(letter for bit, letter in ((1, "F"), (2, "S"), (4, "R")) if flags & bit)
        if said:
            self.said.append(said)
        if flags & 2:
            return
        at = seq - 1
        if at != self.next:
            told = [int(n) for n in re.findall(r"(\d+) bytes before this", said)]
            begun = re.search(r"begins at byte (\d+)", said)
            if begun:
                self.next = int(begun[1])
            assert self.next + sum(told) == at, f"{self.next} to {at}, and told is {said!r}"
            self.gaps += "missing" in said
        assert truth is None or truth[at:at + len(payload)] == payload, f"wrong bytes at {at}"
        self.next, self.bytes = at + len(payload), self.bytes + len(payload)


def directions(capture, files):
    # By the client's port what its connections carried: with fast connect several have the same.
    truths, lives = {}, {}
    for file in map(pathlib.Path, files):
        both = [pathlib.Path(f"{file}.{what}").read_bytes() for what in ("sent", "received")]
        truths.setdefault(int(file.read_text()), []).append(both)
    found = {}
    for from_port, to_port, seq, flags, payload, said in packets(pathlib.Path(capture).read_bytes()):
        port, way = (from_port, 0) if from_port in truths else (to_port, 1)
        lives[port] = lives.get(port, -1 if flags & 2 else 0) + (flags & 18 == 2)
        life, known = lives[port], truths.get(port, [])
        truth = known[life][way] if life < len(known) else None
        name = f"{port} {('sent', 'received')[way]}" + (f" {life}" if life else "")
        direction = found.setdefault(name, Direction())
        direction.truth = truth
        direction.add(seq, flags, payload, said, truth)
    return found


def ended(capture, files):
    """There is a connection, and nothing more comes of any. (That one has left for the kernel is
    said in one direction.)"""
    connections = {}
    for name, direction in directions(capture, files).items():
        connections.setdefault(tuple(name.replace("sent", "received").split()), []).append(direction)
    says = lambda d, text: d.said and text in d.said[-1]
    has_left = lambda both: any(says(d, "went on over the kernel") for d in both)
    has_ends = lambda both: len(both) == 2 and all("F" in d.flags or says(d, "was not seen") for d in both)
    return bool(connections) and all(has_left(both) or has_ends(both) for both in connections.values())


def read(capture, files):
    answer = {}
    for name, d in directions(capture, files).items():
        whole = d.truth is not None and d.next == len(d.truth) and not d.gaps
        state = "whole" if whole else f"part: {d.gaps} gaps, up to {d.next}"
        answer[name] = {"state": state, "bytes": d.bytes, "flags": d.flags, "said": d.said}
    print(json.dumps(answer, indent=1))


def main():
    what, *rest = sys.argv[1:]
    family = socket.AF_INET6 if "--v6" in rest else socket.AF_INET
    if what == "server":
        server(int(rest[0]), family)
    elif what == "client":
        port, file, requests, most, pause, *more = rest
        client(int(port), file, int(requests), int(most), float(pause), family, more)
    elif what == "lives":
        port, file, connections, requests, most, pause = rest
        for number in range(int(connections)):
            client(int(port), f"{file}.{number}", int(requests), int(most), float(pause), family, [])
    elif what == "ended":
        sys.exit(not ended(rest[0], rest[1:]))
    else:
        read(rest[0], rest[1:])


main()
