"""iperf3 and sockperf, which measure."""
import json
import re

from kit import Result, program

# The control connection: seven calls at the begin, and eight at the end, two seconds later.
CONTROL = 1


@program("iperf3", "iperf3, 4 streams and 1 control connection", packages=("iperf3:iperf3",), rounds=3, share=95, ratio=1.0, quick=True)
def iperf3(job):
    port = job.port()
    job.start("iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port)
    job.listening(port)
    told = json.loads(job.client("iperf3", "-c", "127.0.0.1", "-p", port, "-P", "4", "-t", "2", "-J"))
    return Result(rate=told["end"]["sum_received"]["bits_per_second"], output="error" in told, brief=CONTROL)


@program("iperf3-reverse", "iperf3, the server sends", packages=("iperf3:iperf3",), rounds=1, share=95)
def iperf3_reverse(job):
    port = job.port()
    job.start("iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port)
    job.listening(port)
    told = json.loads(job.client("iperf3", "-c", "127.0.0.1", "-p", port, "-R", "-t", "2", "-J"))
    return Result(rate=told["end"]["sum_received"]["bits_per_second"], output="error" in told, brief=CONTROL)


@program("sockperf", "sockperf ping-pong, 64 B, epoll", packages=("sockperf:sockperf",), rounds=3, share=95, ratio=1.0, quick=True)
def sockperf(job):
    port = job.port()
    feed = job.write("feed", f"T:127.0.0.1:{port}\n")
    job.start("sockperf", "server", "-f", feed, "-F", "e")
    job.listening(port)
    said = job.client("sockperf", "ping-pong", "-f", feed, "-F", "e", "-m", "64", "-t", "2", "--mps=4000000")
    latency = float(re.search(r"Latency is ([\d.]+) usec", said)[1])
    wrong = [int(n) for n in re.search(r"dropped messages = (\d+).*duplicated messages = (\d+).*out-of-order messages = (\d+)", said).groups()]
    return Result(output=wrong, rate=1 / latency)
