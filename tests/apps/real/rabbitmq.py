"""RabbitMQ with pika: every message that is published comes, once and in order."""
import os
import shutil

from kit import CLIENT, Result, program, venv

LOAD = """
import pika, sys, threading, time
port, count = int(sys.argv[1]), int(sys.argv[2])
connect = lambda: pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
body = lambda k, n: b"%d %d " % (k, n) + b"x" * (n * 37 % 5000)
wrong = []

def consume(k, ready):
    channel = connect().channel()
    channel.queue_declare(f"q{k}")
    channel.basic_qos(prefetch_count=100)
    ready.set()
    expected = 0
    for method, _, got in channel.consume(f"q{k}", inactivity_timeout=60):
        if method is None or got != body(k, expected):
            wrong.append((k, expected))
            return
        channel.basic_ack(method.delivery_tag)
        expected += 1
        if expected == count:
            channel.connection.close()
            return

def publish(k):
    connection = connect()
    channel = connection.channel()
    for n in range(count):
        channel.basic_publish("", f"q{k}", body(k, n))
    connection.close()

begin = time.monotonic()
threads = []
for k in range(3):
    ready = threading.Event()
    threads.append(threading.Thread(target=consume, args=(k, ready)))
    threads[-1].start()
    ready.wait(30)
    threads.append(threading.Thread(target=publish, args=(k,)))
    threads[-1].start()
for thread in threads:
    thread.join()
print(3 * count, len(wrong), time.monotonic() - begin)
"""


@program("rabbitmq", "RabbitMQ, 3 publishers, 3 consumers (pika)", prepare=lambda: venv("pika", "pika"), share=95, ratio=1.0, limit=300,
         packages=("/usr/lib/rabbitmq/bin/rabbitmq-server:rabbitmq-server", "/usr/lib/python3*/ensurepip:python3-venv"))
def rabbitmq(job):
    user = "rabbitmq" if os.getuid() == 0 else None
    port, epmd, between = job.port(), job.port(), job.port()
    place = {f"RABBITMQ_{name}": str(job.dir / name.lower()) for name in ("MNESIA_BASE", "LOG_BASE", "PID_FILE")}
    settings = place | {
        "RABBITMQ_NODENAME": "it@localhost", "RABBITMQ_NODE_PORT": str(port), "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(between), "ERL_EPMD_PORT": str(epmd), "RABBITMQ_ENABLED_PLUGINS_FILE": str(job.dir / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(job.dir / "none"), "RABBITMQ_CONF_ENV_FILE": str(job.dir / "none"), "HOSTNAME": "localhost"}
    job.start("/usr/lib/rabbitmq/bin/rabbitmq-server", user=user, env=settings)
    job.listening(port, 120)
    python = shutil.copytree(venv("pika", "pika").parent.parent, job.dir / "venv", symlinks=True) / "bin/python"
    # As the same user: processes of different users share no memory.
    requests, errors, seconds = job.client(python, job.write("load.py", LOAD), port, 4000, role=CLIENT, user=user).split()[-3:]
    # pika's way to wake itself up is a pair of connections, the nodes find each other by five.
    return Result(errors=int(errors), rate=int(requests) / float(seconds), brief={"client": 12, "server": 5})
