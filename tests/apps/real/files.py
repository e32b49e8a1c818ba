"""rsync's daemon, and scp: what arrives is what was there."""
import hashlib
import os
import shutil
import time

from kit import Result, program


def sums(place):
    """The checksum of every file below."""
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(place.rglob("*")) if path.is_file()}


def fill(job, name, sizes):
    """Files of these sizes; the bytes are the same for each side."""
    for number, size in enumerate(sizes):
        job.write(f"{name}/{number % 10}/{number}", hashlib.shake_128(b"%d" % number).digest(size))
    return job.dir / name


@program("rsync", "rsync's daemon: 300 MB down, up, and what has changed", packages=("rsync:rsync",), forks=True, share=95, rounds=3)
def rsync(job):
    given = fill(job, "given", [100_000] * 300 + [30_000_000] * 9)
    (job.dir / "taken").mkdir()
    port = job.port()
    conf = job.write("rsyncd.conf", f"""
port = {port}
address = 127.0.0.1
use chroot = no
reverse lookup = no
{"uid = root" if os.getuid() == 0 else ""}
{"gid = root" if os.getuid() == 0 else ""}
[given]
path = {given}
[taken]
path = {job.dir}/taken
read only = no
""")
    job.start("rsync", "--daemon", "--no-detach", f"--config={conf}")
    job.listening(port)
    begin = time.monotonic()
    job.client("rsync", "-a", f"rsync://127.0.0.1:{port}/given/", f"{job.dir}/copy/")
    job.client("rsync", "-a", f"{job.dir}/copy/", f"rsync://127.0.0.1:{port}/taken/")
    seconds = time.monotonic() - begin
    job.write("copy/3/3", b"changed" * 3000)
    # The checksums of parts, which both ends compute at the same time.
    job.client("rsync", "-a", "--no-whole-file", "-I", f"{job.dir}/copy/", f"rsync://127.0.0.1:{port}/taken/")
    return Result(output={name: sums(job.dir / name) for name in ("copy", "taken")}, rate=1 / seconds)


SSH = ("sshd:openssh-server", "scp:openssh-client", "ssh-keygen:openssh-client")


@program("scp", "scp of 1 GB to a sshd", packages=SSH, forks=True, share=95, rounds=1, limit=300)
def scp(job):
    big = job.dir / "big"
    block = hashlib.shake_128(b"scp").digest(1 << 20)
    with open(big, "wb") as file:
        for number in range(1024):
            file.write(number.to_bytes(8, "little") + block[8:])
    for name in ("host", "user"):
        job.tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", job.dir / name)
    shutil.copy(job.dir / "user.pub", job.dir / "authorized")
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    port = job.port()
    job.start(shutil.which("sshd", path="/usr/sbin:" + os.environ["PATH"]), "-D", "-e", "-f", "/dev/null", "-p", port, "-h", job.dir / "host",
              *(part for option in ("ListenAddress=127.0.0.1", "StrictModes=no", "UsePAM=no", "PidFile=none", "PermitRootLogin=yes",
                                    f"AuthorizedKeysFile={job.dir}/authorized", "Subsystem=sftp internal-sftp") for part in ("-o", option)))
    job.listening(port)
    begin = time.monotonic()
    job.client("scp", "-q", "-F", "/dev/null", "-P", port, "-i", job.dir / "user", "-o", "StrictHostKeyChecking=no", "-o",
               "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", big, f"127.0.0.1:{job.dir}/copy", timeout=200)
    seconds = time.monotonic() - begin
    with open(job.dir / "copy", "rb") as file:
        return Result(output=hashlib.file_digest(file, "sha256").hexdigest(), rate=1 / seconds)
