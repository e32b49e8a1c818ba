"""PostgreSQL by pgbench, MariaDB by mysqlslap; servers and clients as the databases' users."""
import os
import re
from pathlib import Path

from kit import Result, Skip, program

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def find_postgres():
    global POSTGRES
    POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not POSTGRES:
        raise Skip("no PostgreSQL")


def postgres(job):
    find_postgres()
    bins, data, port = POSTGRES[-1], job.dir / "data", job.port()
    user = "postgres" if os.getuid() == 0 else None
    job.own(user)
    job.tool(bins / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", user=user)
    server = job.start(bins / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", job.dir, "-c", "fsync=off",
                       "-c", "autovacuum=off", user=user)
    job.listening(port)
    place = ("-h", "127.0.0.1", "-p", port, "-U", "postgres", "postgres")
    job.until(lambda: "ready to accept" in server.said(), what="PostgreSQL")
    # By the unix socket: it is no connection that counts.
    job.tool(bins / "pgbench", "-q", "-i", "-s", "5", "-h", job.dir, *place[2:], user=user)
    return bins, place, user


@program("pgbench", "PostgreSQL, pgbench -S, 8 clients", packages=("/usr/lib/postgresql/*/bin/pgbench:postgresql",),
         prepare=find_postgres, forks=True, share=95, ratio=1.2, rounds=3)
def pgbench(job):
    bins, place, user = postgres(job)
    said = job.client(bins / "pgbench", "-n", "-S", "-c", "8", "-j", "2", "-T", "4", *place, user=user)
    # One connection more reads the table's size.
    return Result(rate=float(re.search(r"tps = ([\d.]+)", said)[1]), brief=1, output=
                  int(re.search(r"failed transactions: (\d+)", said)[1]))


@program("pgbench-write", "PostgreSQL, pgbench, 8 clients, 2000 transactions each", prepare=find_postgres,
         packages=("/usr/lib/postgresql/*/bin/pgbench:postgresql",), forks=True, share=95)
def pgbench_write(job):
    bins, place, user = postgres(job)
    said = job.client(bins / "pgbench", "-n", "-c", "8", "-j", "2", "-t", "2000", *place, user=user)
    done = re.search(r"actually processed: (\S+)", said)[1]
    # What the transactions did adds up the same in all tables.
    sums = job.tool(bins / "psql", "-h", job.dir, *place[2:], "-Atc", "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) "
                    "from pgbench_branches), (select count(*) from pgbench_history)", user=user)
    return Result(rate=float(re.search(r"tps = ([\d.]+)", said)[1]), brief=1, output={"done": done, "sums": sums.strip()})


MARIADB = ("mariadbd:mariadb-server", "mysqlslap:mariadb-client")


@program("mariadb", "MariaDB, mysqlslap, 16 clients", packages=MARIADB, share=95, ratio=1.0, rounds=3)
def mariadb(job):
    user = "mysql" if os.getuid() == 0 else None
    data, port = job.dir / "data", job.port()
    job.own(user)
    job.tool("mysql_install_db", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db",
             user=user)
    server = job.start("mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1",
                       f"--socket={job.dir}/socket", f"--pid-file={job.dir}/pid", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", user=user)
    job.listening(port)
    job.until(lambda: "ready for connections" in server.said(), what="MariaDB")
    sql = lambda text: job.tool("mariadb", "--no-defaults", "-u", "root", f"--socket={job.dir}/socket", "-N", "-e", text)
    sql("create user tester@'127.0.0.1' identified by 'secret'; grant all on *.* to tester@'127.0.0.1';")
    sql("create database it; use it; create table given (a int primary key, b varchar(200)); create table made (b varchar(200));"
        + "insert into given values " + ",".join(f"({n}, '{'x' * n}')" for n in range(100)) + ";")
    said = job.client("mysqlslap", "--no-defaults", "-h", "127.0.0.1", "-P", port, "-u", "tester", "-psecret", "--protocol=tcp",
                      "--concurrency=16", "--number-of-queries=64000", "--create-schema=it", "--no-drop", "--delimiter=;",
                      "--query=select b from given where a = 77; select b from given where a > 90; select 1; "
                      "insert into made values ('made')", user=user)
    seconds = float(re.search(r"Average number of seconds to run all queries: ([\d.]+)", said)[1])
    return Result(rate=64000 / seconds, output=sql("select count(*) from it.made").strip(), brief=1)
