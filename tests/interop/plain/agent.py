"""The Python side of the tests of plain locks: redis-py's Lock, or that of python-redis-lock.

Reads a command a line and answers a line: `true`, `false`, or `error` and what was thrown.
Arguments: the library, the port of the server.
"""

import sys

import redis
import redis_lock
from redis.exceptions import LockNotOwnedError

library, port = sys.argv[1], int(sys.argv[2])
client = redis.Redis(port=port)
locks = {}


class RedisPy:
    def __init__(self, name, ttl):
        self.lock = redis.lock.Lock(client, name, timeout=ttl / 1000, sleep=0.02)

    def acquire(self, wait):
        if wait is None:
            return self.lock.acquire(blocking=False)
        return self.lock.acquire(blocking_timeout=wait / 1000)

    def extend(self, ttl):
        return self.lock.extend(ttl / 1000, replace_ttl=True)

    def release(self):
        self.lock.release()


class PythonRedisLock:
    def __init__(self, name, ttl):
        # Whole seconds only.
        self.lock = redis_lock.Lock(client, name, expire=max(1, ttl // 1000))

    def acquire(self, wait):
        if wait is None:
            return self.lock.acquire(blocking=False)
        # Without a timeout, which may not be longer than `expire`: it asks again each time that `expire` has passed.
        return self.lock.acquire()

    def extend(self, ttl):
        self.lock.extend(expire=max(1, ttl // 1000))
        return True

    def release(self):
        self.lock.release()


kind = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}[library]


def run(operation, name, *numbers):
    numbers = [int(number) for number in numbers]
    if operation in ("try", "wait"):
        lock = kind(name, numbers[0])
        got = lock.acquire(numbers[1] if operation == "wait" else None)
        if got:
            locks[name] = lock
        return got
    if operation == "extend":
        return locks[name].extend(numbers[0])
    locks.pop(name).release()
    return True


print("ready", flush=True)
for line in sys.stdin:
    try:
        answer = "true" if run(*line.split()) else "false"
    except (LockNotOwnedError, redis_lock.NotAcquired):
        answer = "false"
    except Exception as thrown:
        answer = f"error {type(thrown).__name__} {thrown}".replace("\n", " ")
    print(answer, flush=True)
