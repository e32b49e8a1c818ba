"""Programs that make a connection for each request, without and with fast connect (`-F 1`)."""
import json
import os
import re

from kit import CLIENT, PYTHON, Broken, Result, program
from real.nginx import NGINX, figures, nginx, wrk

FAST = {"NACC_FAST_CONNECT": "1"}
AB = (*NGINX, "ab:apache2-utils")


def short(name, title, least=None, **settings):
    """Two rows: connections cost nothing more than without the library; and, with `-F 1`, what they
    gain at least."""

    def add(work):
        program(name, title, ratio=0.98, rounds=3, **settings)(work)
        program(f"{name}-fast", f"{title}, `-F 1`", ratio=least, rounds=3, env=FAST, **settings)(work)
        return work

    return add


def ab(job, port, path, requests=20000, connections=50):
    """ab's requests, each on a connection of its own."""
    said = job.client("ab", "-q", "-n", requests, "-c", connections, f"http://127.0.0.1:{port}{path}")
    number = lambda what: float(re.search(what + r"\D*([\d.]+)", said).group(1))
    wrong = number("Failed requests:") + (number("Non-2xx responses:") if "Non-2xx" in said else 0)
    if number("Complete requests:") != requests:
        raise Broken(said)
    return Result(errors=int(wrong), rate=number("Requests per second:"), p99=number(r"\b99%") / 1e3)


@short("ab-nginx", "ab -c 50, nginx with 2 workers, 1 KB, a connection for each request", 2.0, packages=AB, quick=True)
def ab_nginx(job):
    port, _ = nginx(job, "one")
    ab(job, port, "/1000", requests=2000)
    return ab(job, port, "/1000")


@short("wrk-close", "wrk, Connection: close, the same nginx", 1.0, packages=NGINX)
def wrk_close(job):
    port, _ = nginx(job, "one", server="keepalive_timeout 0;")
    load = wrk(job, port, "/1000", seconds=3)
    return figures(job, load)


@short("nginx-upstream", "nginx as a reverse proxy of nginx, without keepalive to it", 1.0, packages=NGINX)
def upstream(job):
    up, _ = nginx(job, "up", role="upstream")
    port, _ = nginx(job, "proxy", role="proxy", server=f"location / {{ proxy_pass http://127.0.0.1:{up}; proxy_buffering off; }}")
    return figures(job, wrk(job, port, "/1000", seconds=3))


@short("haproxy-server-close", "HAProxy, option http-server-close, before nginx", 1.0, packages=(*NGINX, "haproxy:haproxy"))
def haproxy(job):
    up, _ = nginx(job, "up", role="upstream")
    port = job.port()
    conf = job.write("haproxy.cfg", f"""
global
  nbthread 2
defaults
  mode http
  option http-server-close
  timeout connect 10s
  timeout client 30s
  timeout server 30s
listen in
  bind 127.0.0.1:{port}
  server one 127.0.0.1:{up}
""")
    job.start("haproxy", "-db", "-f", conf, role="proxy")
    job.listening(port)
    return figures(job, wrk(job, port, "/1000", seconds=3))


@short("redis-short", "redis-benchmark -k 0 -c 50, GET", 2.5,
       packages=("redis-server:redis-server", "redis-benchmark:redis-tools"))
def redis(job):
    port = redis_server(job)
    said = job.client("redis-benchmark", "-p", port, "-k", 0, "-c", 50, "-n", 60000, "-t", "get", "--csv")
    line = next(line for line in said.splitlines() if line.startswith('"GET"')).replace('"', "").split(",")
    return Result(rate=float(line[1]), p99=float(line[6]) / 1e3)


def redis_server(job):
    port = job.port()
    job.start("redis-server", "--port", port, "--save", "", "--appendonly", "no", role="redis")
    job.listening(port)
    return port


@short("curl-close", "curl, 2000 requests of one process, a connection for each", 1.0, packages=(*NGINX, "curl:curl"))
def curl(job):
    port, _ = nginx(job, "one", server="keepalive_timeout 0;")
    count = 2000
    said = job.client("curl", "-s", "-S", "-o", "/dev/null", "-w", "%{http_code} %{time_total}\\n", f"http://127.0.0.1:{port}/1000?[1-{count}]")
    lines = [line.split() for line in said.splitlines()]
    times = sorted(float(time) for _, time in lines)
    return Result(errors=sum(code != "200" for code, _ in lines), rate=count / sum(times), p99=times[count * 99 // 100])


REQUESTS = """import json, requests, sys, time
times, wrong = [], 0
for n in range(1500):
    begin = time.perf_counter()
    answer = requests.get(f"http://127.0.0.1:{sys.argv[1]}/1000")
    wrong += len(answer.content) != 1000
    times.append(time.perf_counter() - begin)
times.sort()
print(json.dumps([len(times) / sum(times), times[len(times) * 99 // 100], wrong]))
"""


@short("requests", "Python requests without a session", 1.0, packages=(*NGINX, "/usr/lib/python3*/dist-packages/requests:python3-requests"))
def requests(job):
    port, _ = nginx(job, "one")
    rate, p99, wrong = json.loads(job.client(PYTHON, job.write("get.py", REQUESTS), port))
    return Result(errors=wrong, rate=rate, p99=p99)


PAGE = """<?php
$redis = new Redis();
$redis->connect('127.0.0.1', %d);
echo $redis->get('page');
"""


@short("php-fpm-redis", "PHP-FPM, a page with one GET of Redis, by nginx and ab -c 16", 1.5, packages=(
    *AB, "redis-server:redis-server", "redis-cli:redis-tools", "/usr/sbin/php-fpm*:php-fpm", "/usr/lib/php/*/redis.so:php-redis"))
def php_fpm(job):
    cache = redis_server(job)
    job.tool("redis-cli", "-p", cache, "set", "page", "x" * 1000)
    job.write("www/page.php", PAGE % cache)
    # Of other names it is a link to this one.
    fpm = max(name for name in os.listdir("/usr/sbin") if name.startswith("php-fpm"))
    who = "user = root\ngroup = root\n" if os.getuid() == 0 else ""
    conf = job.write("fpm.conf", f"""
[global]
error_log = {job.dir}/fpm.err
daemonize = no
[www]
{who}listen = {job.dir}/fpm.sock
pm = static
pm.max_children = 4
""")
    job.start(f"/usr/sbin/{fpm}", "-F", *(["-R"] if os.getuid() == 0 else []), "-y", conf, role=CLIENT)
    job.until(lambda: (job.dir / "fpm.sock").exists(), what="PHP-FPM's socket")
    port, _ = nginx(job, "one", role="web", server=f"""location ~ \\.php$ {{
      fastcgi_pass unix:{job.dir}/fpm.sock; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
      fastcgi_param REQUEST_METHOD $request_method; fastcgi_param QUERY_STRING $query_string; }}""")
    ab(job, port, "/page.php", requests=500, connections=16)
    return ab(job, port, "/page.php", requests=10000, connections=16)
