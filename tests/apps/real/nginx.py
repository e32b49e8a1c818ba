"""nginx by wrk: static files, as a reverse proxy, a reload and a change of the binary under load;
HAProxy before two of it."""
import os
import re
import shutil
import signal

from kit import EVERY, CLIENT, Broken, Result, program

NGINX = ("nginx:nginx-core", "wrk:wrk")


def configure(job, name, port, server, upstream, daemon):
    """nginx with two workers, on that port. A new binary has only those variables that the file
    names."""
    return job.write(f"{name}.conf", f"""
{"user root;" if os.getuid() == 0 else ""}
env LD_PRELOAD; env NACC_LOG_PATH;
worker_processes 2; pid {job.dir}/{name}.pid; error_log {job.dir}/{name}.err warn; daemon {daemon};
events {{ worker_connections 500; }}
http {{
  access_log off; default_type application/octet-stream; sendfile on; keepalive_requests 1000000; keepalive_timeout 60;
  client_body_temp_path {job.dir}/{name}-b; proxy_temp_path {job.dir}/{name}-p; fastcgi_temp_path {job.dir}/{name}-f;
  uwsgi_temp_path {job.dir}/{name}-u; scgi_temp_path {job.dir}/{name}-s;
  {upstream}
  server {{ listen 127.0.0.1:{port}; root {job.dir}/www; {server} }}
}}
""")


def nginx(job, name, server="", upstream="", role="server", daemon="off"):
    """Starts nginx with a file of 1 KB and one of 1 MB; its port and process."""
    port = job.port()
    path = configure(job, name, port, server, upstream, daemon)
    for size in (1000, 1_000_000):
        job.write(f"www/{size}", os.urandom(size))
    process = job.start(shutil.which("nginx", path="/usr/sbin:" + os.environ["PATH"]), "-p", job.dir, "-c", path, role=role)
    job.listening(port)
    return port, process


PROXY = dict(upstream="upstream up { server 127.0.0.1:%d; keepalive 64; keepalive_requests 1000000; }",
             server="location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ''; proxy_buffering off; }")

SCRIPT = """done = function(s, l, r)
  io.write(string.format("figures %d %d %d %d\\n", s.requests, s.duration, l.max, l:percentile(99)))
  io.write(string.format("errors %d %d\\n", s.errors.connect + s.errors.write + s.errors.status + s.errors.timeout, s.errors.read))
end"""


def wrk(job, port, path, connections=16, seconds=2):
    """Starts wrk, which makes one connection more, to see whether somebody listens."""
    script = job.write("done.lua", SCRIPT)
    return job.start("wrk", "-t", "2", "-c", connections, "-d", f"{seconds}s", "--timeout", "10s", "-s", script,
                     f"http://127.0.0.1:{port}{path}", role=CLIENT)


def figures(job, load, closes=False):
    """What wrk came to at its end; `closes`: some of its connections are closed by servers that
    end."""
    said = job.finish(load)
    requests, duration, slowest, p99 = map(int, re.search(r"figures (\d+) (\d+) (\d+) (\d+)", said).groups())
    if not requests:
        raise Broken(said)
    errors, ends = map(int, re.search(r"errors (\d+) (\d+)", said).groups())
    # wrk calls a connection that an old worker has closed a read error; how many there are depends
    # on the moment.
    return Result(errors=errors + (0 if closes else ends), broken=ends if closes else None, rate=requests / duration,
                  worst=slowest / 1e6, p99=p99 / 1e6, brief=1)


@program("nginx-static", "nginx, 2 workers, 1 KB files, 16 connections", packages=NGINX, sides=EVERY, share=95, ratio=1.0,
         rounds=3, quick=True)
def static(job):
    port, _ = nginx(job, "one")
    return figures(job, wrk(job, port, "/1000"))


@program("nginx-static-1m", "nginx, 2 workers, 1 MB files, 16 connections", packages=NGINX, share=95, ratio=1.0, rounds=3)
def static_large(job):
    port, _ = nginx(job, "one")
    return figures(job, wrk(job, port, "/1000000"))


@program("nginx-proxy", "nginx as a reverse proxy of nginx, 1 KB", packages=NGINX, share=95, ratio=2.0, rounds=3, quick=True)
def proxy(job):
    up, _ = nginx(job, "up", role="upstream")
    port, _ = nginx(job, "proxy", role="proxy", server=PROXY["server"], upstream=PROXY["upstream"] % up)
    return figures(job, wrk(job, port, "/1000"))


@program("nginx-proxy-1m", "nginx as a reverse proxy of nginx, 1 MB", packages=NGINX, share=95, ratio=1.0, rounds=3)
def proxy_large(job):
    up, _ = nginx(job, "up", role="upstream")
    port, _ = nginx(job, "proxy", role="proxy", server=PROXY["server"], upstream=PROXY["upstream"] % up)
    return figures(job, wrk(job, port, "/1000000"))


@program("nginx-reload", "nginx, five reloads under load", packages=NGINX, share=95, rounds=5)
def reload(job):
    port, master = nginx(job, "one")
    load = wrk(job, port, "/1000", seconds=6)
    children = lambda: set(job.children(master.pid))
    for _ in range(5):
        # The workers that live now are over in a moment.
        job.look()
        before = children()
        master.send_signal(signal.SIGHUP)
        # New workers; of the old ones those stay that still have connections.
        job.until(lambda: len(children() - before) >= 2, what="a new worker")
        job.sleep(0.5)
    return figures(job, load, closes=True)


def master(job, old=None):
    """The pid of nginx' master, once it is another one than `old`. It listens before it writes its
    file, and a new one moves the old one's away first."""
    said = []

    def written():
        try:
            said[:] = (job.dir / "one.pid").read_text().split()
        except FileNotFoundError:
            return False
        return said and said != [str(old)]

    job.until(written, what="a new master")
    return int(said[0])


@program("nginx-upgrade", "nginx, the binary exchanged under load", packages=NGINX, share=95, rounds=5)
def upgrade(job):
    # Only a master that has left its parent lets itself be replaced.
    port, _ = nginx(job, "one", daemon="on")
    old = job.daemon(master(job))
    load = wrk(job, port, "/1000", seconds=5)
    job.sleep(1)
    os.kill(old, signal.SIGUSR2)
    new = job.daemon(master(job, old))
    job.until(lambda: len(job.children(new)) >= 2, what="the new master's workers")
    job.look()
    os.kill(old, signal.SIGQUIT)
    job.until(lambda: not os.path.exists(f"/proc/{old}/fd/0"), what="the old master's end")
    os.kill(new, 0)
    return figures(job, load, closes=True)


def haproxy(job, path):
    ups = [nginx(job, f"up{n}", role="upstream")[0] for n in (1, 2)]
    port = job.port()
    conf = job.write("haproxy.cfg", f"""
global
  nbthread 2
defaults
  mode http
  timeout connect 10s
  timeout client 30s
  timeout server 30s
  http-reuse always
frontend in
  bind 127.0.0.1:{port}
  default_backend out
backend out
  balance roundrobin
  server one 127.0.0.1:{ups[0]} pool-max-conn 100
  server two 127.0.0.1:{ups[1]} pool-max-conn 100
""")
    job.start("haproxy", "-db", "-f", conf, role="proxy")
    job.listening(port)
    return figures(job, wrk(job, port, path, seconds=3))


HAPROXY = (*NGINX, "haproxy:haproxy")


@program("haproxy-1k", "HAProxy before two nginx, 1 KB", packages=HAPROXY, share=95, ratio=1.0, slowest=True, faultless=True, rounds=5)
def haproxy_small(job):
    return haproxy(job, "/1000")


@program("haproxy-1m", "HAProxy before two nginx, 1 MB", packages=HAPROXY, share=95, ratio=1.0, p99=True, slowest=True, faultless=True, rounds=5)
def haproxy_large(job):
    return haproxy(job, "/1000000")
