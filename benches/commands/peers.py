#!/usr/bin/env python3
"""Breaks commands that run a program under a lock, and prints what the program and the next one do.

usage: peers.py [--only FAULT,..] TOOL ..      of flock, etcdctl, consul, leasehold

Each tool is started with its defaults and a server of its own, each fault on a name of its own. The program under the
lock is a shell that writes the time four times a second, and so does a process that it has started by `setsid`. A rival
waits for the same name by the same tool. All times are CLOCK_BOOTTIME in seconds after the fault.
"""
import os, signal, socket, subprocess, sys, tempfile, threading, time

LONG = 150.0
FOLDER = tempfile.mkdtemp(prefix="peers-")
LOOP = 'while read up rest < /proc/uptime; do echo $up >> "$0"; sleep 0.25; done'
TREE = 'setsid sh -c \'' + LOOP + '\' "$0.far" & ' + LOOP
ONCE = 'read up rest < /proc/uptime; echo $up >> "$0"; sleep 1'


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """Passes on what comes, or keeps it while `dark`."""

    def __init__(self, upstream):
        self.upstream, self.dark, self.port = upstream, threading.Event(), free_port()
        listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, args=(listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            near, _ = listener.accept()
            threading.Thread(target=self.serve, args=(near,), daemon=True).start()

    def serve(self, near):
        while self.dark.is_set():
            time.sleep(0.05)
        try:
            far = socket.create_connection(("127.0.0.1", self.upstream))
        except OSError:
            return near.close()
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    def carry(self, source, sink):
        try:
            while data := source.recv(65536):
                while self.dark.is_set():
                    time.sleep(0.05)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Tool:
    port = None

    def start(self):
        pass

    def stop(self):
        pass

    def env(self):
        return {}


class Flock(Tool):
    def line(self, name, port=None):
        return ["flock", os.path.join(FOLDER, "flock-" + name)]

    def shell(self, name):
        return f"flock {os.path.join(FOLDER, 'flock-' + name)} "

    def version(self):
        return subprocess.check_output(["flock", "--version"], text=True).strip()


class Server(Tool):
    process = None

    def spawn(self, words):
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)

    def stop(self):
        if self.process:
            self.process.kill()


class Etcdctl(Server):
    def start(self):
        self.port, peer = free_port(), free_port()
        url, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        self.spawn(["etcd", "--data-dir", os.path.join(FOLDER, "etcd"), "--listen-client-urls", url,
                    "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", "default=" + peer])
        for _ in range(100):
            if subprocess.run(["etcdctl", "--endpoints", url, "endpoint", "health"], capture_output=True,
                              env=dict(os.environ, **self.env())).returncode == 0:
                return
            time.sleep(0.2)
        sys.exit("etcd does not start")

    def env(self):
        return {"ETCDCTL_API": "3"}

    def line(self, name, port=None):
        return ["etcdctl", "--endpoints", f"http://127.0.0.1:{port or self.port}", "lock", name, "--"]

    def version(self):
        return subprocess.check_output(["etcdctl", "version"], text=True, env=dict(os.environ, ETCDCTL_API="3")).split("\n")[0]


class Consul(Server):
    def start(self):
        self.port = free_port()
        self.spawn(["consul", "agent", "-dev", "-bind", "127.0.0.1", "-http-port", str(self.port), "-dns-port", "-1",
                    "-grpc-port", "-1", "-grpc-tls-port", "-1", "-serf-lan-port", str(free_port()), "-serf-wan-port",
                    str(free_port()), "-server-port", str(free_port())])
        for _ in range(150):
            if subprocess.run(["consul", "kv", "put", f"-http-addr=127.0.0.1:{self.port}", "up", "1"],
                              capture_output=True).returncode == 0:
                return
            time.sleep(0.2)
        sys.exit("consul does not start")

    def line(self, name, port=None):
        # With -shell=false the arguments are the program's, as for the others.
        return ["consul", "lock", "-shell=false", f"-http-addr=127.0.0.1:{port or self.port}", name]

    def version(self):
        return subprocess.check_output(["consul", "version"], text=True).split("\n")[0]


class Leasehold(Server):
    def start(self):
        self.port = free_port()
        self.spawn(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""])
        time.sleep(1)

    def line(self, name, port=None):
        return ["leasehold", "--url", f"redis://127.0.0.1:{port or self.port}", "run", name, "--"]

    def version(self):
        return subprocess.check_output(["leasehold", "--version"], text=True).strip()


def start(tool, line, program, mark="none"):
    return subprocess.Popen(line + program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, env=dict(os.environ, PEERS_MARK=mark, **tool.env()),
                            start_new_session=True)


def kill_marked(mark):
    """Kills all processes that have the mark in their environment."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if f"PEERS_MARK={mark}".encode() in environ.read().split(b"\0"):
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass


def times(path):
    try:
        with open(path) as lines:
            return [float(line) for line in lines if line.strip()]
    except FileNotFoundError:
        return []


def until(condition, limit):
    end = now() + limit
    while not condition() and now() < end:
        time.sleep(0.05)
    return condition()


class Run:
    """A holder with its tree, and a rival."""

    def __init__(self, tool, fault, port=None, rival=True):
        self.tool, self.name = tool, fault
        self.file = os.path.join(FOLDER, type(tool).__name__ + "-" + fault)
        self.holder = start(tool, tool.line(fault, port), ["sh", "-c", TREE, self.file], self.file)
        if not until(lambda: times(self.file) and times(self.file + ".far"), 30):
            raise RuntimeError("the program was not started")
        self.rival = self.wait() if rival else None
        time.sleep(2)

    def wait(self):
        return start(self.tool, self.tool.line(self.name), ["sh", "-c", ONCE, self.file + ".rival"], self.file + ".rival")

    def broken(self, at, limit, clean=True):
        """Waits until the rival runs and the tree is gone, or the limit, and tells of both."""
        def quiet(path):
            return now() - (times(path) or [0.0])[-1] > 2
        until(lambda: times(self.file + ".rival") and quiet(self.file) and quiet(self.file + ".far"), limit)
        end = now()
        granted = times(self.file + ".rival")
        parts = []
        for who, path in (("child", self.file), ("setsid process", self.file + ".far")):
            last = times(path)[-1]
            parts.append(f"{who} " + ("still runs" if end - last < 2 else f"ends at {last - at:.1f} s"))
        parts.append(f"rival {'runs at %.1f s' % (granted[0] - at) if granted else 'has not got it'}")
        overlap = granted and max(times(self.file)[-1], times(self.file + ".far")[-1]) - granted[0]
        parts.append(f"overlap {overlap:.1f} s" if granted and overlap > 0 else "no overlap")
        if clean:
            self.clean()
        return f"{', '.join(parts)} (watched for {end - at:.0f} s)"

    def clean(self):
        for process in (self.holder, self.rival):
            if process and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        kill_marked(self.file)


def killed(tool):
    run, at = Run(tool, "killed"), now()
    run.holder.kill()
    return run.broken(at, LONG)


def stopped(tool):
    run, at = Run(tool, "stopped"), now()
    run.holder.send_signal(signal.SIGSTOP)
    text = run.broken(at, LONG, clean=False)
    woken = now()
    run.holder.send_signal(signal.SIGCONT)
    until(lambda: run.holder.poll() is not None, 30)
    time.sleep(2.5)
    left = [who for who, path in (("child", run.file), ("setsid process", run.file + ".far"))
            if now() - times(path)[-1] < 2]
    run.clean()
    return text + f"; 32 s after it goes on, running: {', '.join(left) or 'none'}, exit {run.holder.returncode}"


def dark(tool):
    if tool.port is None:
        return "no server"
    proxy = Proxy(tool.port)
    run = Run(tool, "dark", proxy.port)
    at = now()
    proxy.dark.set()
    threading.Timer(60, proxy.dark.clear).start()
    text = run.broken(at, LONG, clean=False)
    code = run.holder.poll()
    run.clean()
    return text + f", exit {code}"


def server_gone(tool):
    """The server itself stands still, so the rival has no server either."""
    if tool.port is None:
        return "no server"
    run = Run(tool, "server")
    at = now()
    tool.process.send_signal(signal.SIGSTOP)
    threading.Timer(60, lambda: tool.process.send_signal(signal.SIGCONT)).start()
    text = run.broken(at, 110, clean=False)
    code = run.holder.poll()
    run.clean()
    return text + f", exit {code}"


def background(tool):
    """The child ends; what it has started by setsid runs for 10 s more."""
    name, file = "background", os.path.join(FOLDER, type(tool).__name__ + "-background")
    far = 'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40; do read up rest < /proc/uptime; echo $up >> "$0"; sleep 0.25; done'
    begin = now()
    holder = start(tool, tool.line(name), ["sh", "-c", f"setsid sh -c '{far}' \"$0\" & sleep 1", file])
    until(lambda: times(file), 30)
    rival = start(tool, tool.line(name), ["sh", "-c", ONCE, file + ".rival"])
    until(lambda: times(file + ".rival"), 60)
    time.sleep(12)
    first, last, granted = times(file)[0], times(file)[-1], times(file + ".rival")
    return f"setsid process runs until {last - first:.1f} s, rival runs at {granted[0] - first:.1f} s, holder exit {holder.wait()}"


def term_running(tool):
    run, at = Run(tool, "term"), now()
    run.holder.terminate()
    text = run.broken(at, 40, clean=False)
    code = run.holder.poll()
    run.clean()
    return text + f", exit {code}"


def term_waiting(tool):
    run = Run(tool, "waiting", rival=False)
    waiter = start(tool, tool.line("waiting"), ["sh", "-c", ONCE, run.file + ".waiter"])
    time.sleep(2)
    run.rival = run.wait()
    time.sleep(2)
    at = now()
    waiter.terminate()
    ended = until(lambda: waiter.poll() is not None, 20)
    text = f"waiter ends after {now() - at:.1f} s, exit {waiter.returncode}" if ended else "waiter goes on for 20 s"
    if not ended:
        waiter.kill()
    at = now()
    run.holder.terminate()
    time.sleep(0.2)
    kill_marked(run.file)
    return text + "; after the holder is stopped the next one runs at " + (
        "%.1f s" % (times(run.file + ".rival")[0] - at) if until(lambda: times(run.file + ".rival"), 60) else "never")


def codes(tool):
    found = []
    for name, program in (("exit 3", "exit 3"), ("kill -TERM itself", "kill -TERM $$"), ("kill -KILL itself", "kill -KILL $$")):
        found.append(f"{name}: {start(tool, tool.line('codes'), ['sh', '-c', program]).wait(60)}")
    for name, program in (("not found", ["/no/such/program"]), ("not executable", ["/etc/passwd"])):
        try:
            found.append(f"{name}: {start(tool, tool.line('codes'), program).wait(60)}")
        except subprocess.TimeoutExpired:
            found.append(f"{name}: hangs")
    return ", ".join(found)


def nested(tool):
    line = tool.line("nested")
    process = start(tool, line, line + ["true"])
    try:
        return f"exit {process.wait(40)}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "waits for itself (40 s)"


FAULTS = [killed, stopped, dark, background, term_running, term_waiting, codes, nested]
TOOLS = {"flock": Flock, "etcdctl": Etcdctl, "consul": Consul, "leasehold": Leasehold}


def main(words):
    only = None
    if words[:1] == ["--only"]:
        only, words = words[1].split(","), words[2:]
    faults = [fault for fault in FAULTS + [server_gone] if only is None or fault.__name__ in only]
    for tool in [TOOLS[word]() for word in words]:
        tool.start()
        print(f"## {tool.version()}", flush=True)

        def report(fault):
            try:
                print(f"{fault.__name__}: {fault(tool)}", flush=True)
            except Exception as error:
                print(f"{fault.__name__}: failed: {error!r}", flush=True)

        threads = [threading.Thread(target=report, args=(fault,)) for fault in faults if fault != server_gone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if server_gone in faults:
            report(server_gone)
        tool.stop()


main(sys.argv[1:])
