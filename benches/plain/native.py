#!/usr/bin/env python3
"""Measures what the scripts of plain locks cost a server, beside its native commands for the same.

usage: native.py [--rounds N] [--at-once N] [SERVER ..]     redis-server by default; Valkey 9 has all of the commands

Each row is a way to do one thing to 1000 names, each time by a client that sends 20 things at once, so that
reading and writing costs little; with `--at-once 1` each costs a trip, as a lone lock does. `command` is the time of the
commands by `INFO commandstats`, `process` that of the whole server by its own clock of the processor, which has reading,
parsing and answering in it. Both in us for one thing (of a batch: for one of its 100 renewals), medians of rounds in which all rows
take turns. Compare rows of one run.
"""
import os, re, socket, statistics, subprocess, sys, tempfile, time

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/store/redis/scripts")
HOLDER = "8d9f0b3c-7a4e-4f1e-9f0b-3c7a4e4f1e9f:12"
TTL = 30000
NAMES = [f"n{number}" for number in range(1000)]
BATCH = 100
COMPARE_AND_DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"
COMPARE_AND_EXPIRE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end"


def composed(name):
    """A script of plain locks, as `compose.rs` makes it."""
    path = os.path.join(FOLDER, f"plain_{name}.lua")
    if not os.path.exists(path):
        path = os.path.join(FOLDER, f"{name}.lua")
    with open(path) as file:
        lines = file.read().splitlines()
    text = []
    for line in lines:
        parts = re.match(r"\s*-- @include (.*)", line)
        text += [composed(part) for part in parts[1].split(", ")] if parts else [line]
    return "\n".join(text)


class Server:
    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        for _ in range(200):
            try:
                self.socket = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                time.sleep(0.05)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest.decode()

    def many(self, commands):
        out = bytearray()
        for words in commands:
            out += b"*%d\r\n" % len(words)
            for word in words:
                word = str(word).encode()
                out += b"$%d\r\n%s\r\n" % (len(word), word)
        self.socket.sendall(out)
        return [self.reply() for _ in commands]

    def __call__(self, *words):
        answer = self.many([words])[0]
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    def has(self, *words):
        return not isinstance(self.many([words])[0], RuntimeError)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class Costs:
    """What a server has spent so far."""

    def __init__(self, server):
        stats = server("INFO", "commandstats")
        # The time of a script has that of its commands in it.
        found = dict(re.findall(r"cmdstat_([\w|]+):calls=\d+,usec=(\d+)", stats))
        self.script = int(found.get("evalsha", 0))
        self.alone = sum(int(found.get(name, 0)) for name in ("set", "delifeq", "publish"))
        cpu = server("INFO", "cpu")
        self.process = sum(float(re.search(rf"used_cpu_{part}_main_thread:([\d.]+)", cpu)[1]) for part in ("user", "sys"))


def chunks(items, size):
    return [items[at:at + size] for at in range(0, len(items), size)]


class Row:
    """A way to do one thing: the commands for some names, and whether they are in scripts."""

    def __init__(self, title, before, commands, check, size=None, scripted=True):
        self.title, self.before, self.commands, self.check = title, before, commands, check
        self.size, self.scripted, self.found = size, scripted, []

    def run(self, server, at_once):
        if self.before:
            server.many([("SET", name, HOLDER, "PX", TTL) for name in NAMES])
        else:
            server.many([("DEL", name) for name in NAMES])
        before = Costs(server)
        for names in chunks(NAMES, self.size or at_once):
            answers = server.many(self.commands(names))
            if not all(self.check(answer) for answer in answers):
                raise RuntimeError(f"{self.title}: {answers}")
        after = Costs(server)
        command = after.script - before.script if self.scripted else after.alone - before.alone
        process = (after.process - before.process) * 1e6
        self.found.append((command / len(NAMES), process / len(NAMES)))


def each(make):
    return lambda names: [words for name in names for words in make(name)]


def rows(server):
    load = lambda text: server("SCRIPT", "LOAD", text)
    acquire, release, renew = (load(composed(name)) for name in ("acquire_alone", "release_alone", "renew"))
    delete, expire, empty = load(COMPARE_AND_DELETE), load(COMPARE_AND_EXPIRE), load("return 1")
    manager, number = HOLDER.rsplit(":", 1)

    def renewal(names):
        holders = ",".join([number] * len(names))
        return ("EVALSHA", renew, len(names), *names, TTL, 0, manager + ":", holders, "M" + "L" * len(names))

    channel = lambda name: "redisson_lock__channel:{" + name + "}"
    server("SET", "n", HOLDER)
    native_renew = server.has("SET", "n", HOLDER, "IFEQ", HOLDER, "PX", TTL)
    native_release = server.has("DELIFEQ", "n", HOLDER)
    done = lambda answer: answer in (0, 1, "OK")
    if_eq = lambda name: [("SET", name, HOLDER, "IFEQ", HOLDER, "PX", TTL)]
    found = [
        Row("acquire: SET NX PX, what leasehold sends", False, each(lambda name: [("SET", name, HOLDER, "NX", "PX", TTL)]), done, scripted=False),
        Row("acquire: the script, as a check", False, each(lambda name: [("EVALSHA", acquire, 1, name, HOLDER, TTL)]), done),
        Row("renew: the script, in a call for 100, what leasehold sends", True, lambda names: [renewal(names)], lambda answer: answer == [0], size=BATCH),
        Row("renew: the script, in a call for one", True, each(lambda name: [renewal([name])]), lambda answer: answer == [0]),
        Row("renew: two lines of Lua", True, each(lambda name: [("EVALSHA", expire, 1, name, HOLDER, TTL)]), done),
        Row("release: the script, what leasehold sends", True, each(lambda name: [("EVALSHA", release, 1, name, HOLDER)]), done),
        Row("release: two lines of Lua, no message", True, each(lambda name: [("EVALSHA", delete, 1, name, HOLDER)]), done),
        Row("a script that does nothing", True, each(lambda name: [("EVALSHA", empty, 1, name, HOLDER)]), done),
    ]
    if native_renew:
        found[5:5] = [
            Row("renew: SET IFEQ PX", True, each(if_eq), done, scripted=False),
            Row("renew: SET IFEQ PX, 100 at once", True, each(if_eq), done, size=BATCH, scripted=False),
        ]
    if native_release:
        found.append(Row("release: DELIFEQ, no message", True, each(lambda name: [("DELIFEQ", name, HOLDER)]), done, scripted=False))
        both = lambda name: [("DELIFEQ", name, HOLDER), ("PUBLISH", channel(name), 0)]
        found.append(Row("release: DELIFEQ and PUBLISH", True, each(both), done, scripted=False))
    return found


def measure(program, rounds, at_once):
    server = Server(program)
    try:
        version = subprocess.check_output([program, "--version"], text=True).split(" sha=")[0]
        print(f"## {version}, {rounds} rounds, {at_once} at once", flush=True)
        all_rows = rows(server)
        for number in range(rounds + 3):
            for row in all_rows:
                row.run(server, at_once)
        print(f"{'':62s} command  process")
        for row in all_rows:
            command, process = (statistics.median(kind) for kind in zip(*row.found[3:]))
            print(f"{row.title:62s} {command:7.2f}  {process:7.2f}", flush=True)
    finally:
        server.stop()


def main(words):
    options = {"--rounds": 41, "--at-once": 20}
    while words and words[0] in options:
        options[words[0]], words = int(words[1]), words[2:]
    for program in words or ["redis-server"]:
        measure(program, options["--rounds"], options["--at-once"])


main(sys.argv[1:])
