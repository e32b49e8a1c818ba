"""Node, whose libuv has an io_uring for epoll_ctl from 22 on: an HTTP server and client, and a
cluster of workers."""
from kit import Result, node, program

SERVER = """
const http = require('http'), crypto = require('crypto'), cluster = require('cluster');
const body = crypto.randomBytes(2000), sum = crypto.createHash('sha256').update(body).digest('hex');
if (process.argv[3] > 0 && cluster.isPrimary) {
  for (let i = 0; i < process.argv[3]; i++) cluster.fork();
} else {
  http.createServer((request, response) => {
    const got = crypto.createHash('sha256');
    request.on('data', (part) => got.update(part));
    request.on('end', () => {
      if (request.method === 'POST') response.end(got.digest('hex'));
      else { response.setHeader('X-Sum', sum); response.setHeader('Content-Length', body.length); response.end(body); }
    });
  }).listen(+process.argv[2], '127.0.0.1');
}
"""
# Eight connections that stay; each answer is compared with what was sent.
LOAD = """
const http = require('http'), crypto = require('crypto');
const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
let done = 0, errors = 0, end = Date.now() + 2000;
const begin = process.hrtime.bigint();
function one(n) {
  return new Promise((resolve) => {
    const body = crypto.randomBytes(1 + (n * 7919) % (n % 50 ? 5000 : 500000));
    const wanted = crypto.createHash('sha256').update(body).digest('hex');
    const request = http.request({ port: +process.argv[2], host: '127.0.0.1', method: 'POST', agent }, (response) => {
      let got = '';
      response.on('data', (part) => got += part);
      response.on('end', () => { done++; if (got !== wanted) errors++; resolve(); });
    });
    request.on('error', (error) => { console.error(error); errors++; resolve(); });
    request.end(body);
  });
}
async function loop(k) { for (let n = k; n < 1000 || Date.now() < end; n += 8) await one(n); }
Promise.all([0, 1, 2, 3, 4, 5, 6, 7].map(loop)).then(() => {
  console.log(done, errors, Number(process.hrtime.bigint() - begin) / 1e9);
  agent.destroy();
});
"""


def serve(job, version, workers=0):
    port = job.port()
    job.start(node(version), job.write("server.js", SERVER), port, workers)
    job.listening(port)
    return port


def http(version):
    def work(job):
        port = serve(job, version)
        done, errors, seconds = job.client(node(version), job.write("load.js", LOAD), port).split()[-3:]
        return Result(errors=int(errors), rate=int(done) / float(seconds))

    return work


for major in (18, 20, 22, 24):
    program(f"node-{major}", f"Node {major}, HTTP server and client, 8 connections", share=95, ratio=1.0, rounds=3,
            packages=("npm:npm",), prepare=lambda major=major: node(major))(http(major))


@program("node-cluster", "Node 20, a cluster of two workers", packages=("npm:npm",), prepare=lambda: node(20), forks=True, share=95, rounds=3)
def cluster(job):
    # Node's primary accepts, and passes the connections to its workers.
    port = serve(job, 20, 2)
    requests, errors, seconds = job.load("http", port, 8, 2)
    return Result(errors=errors, rate=requests / seconds)
