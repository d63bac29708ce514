"""redis-py: redis.asyncio.lock.Lock with its defaults. Arguments: URL, scenario, seconds."""

import asyncio
import sys
import time

import redis.asyncio as redis


async def work(client, name, until, times):
    while time.perf_counter() < until:
        start = time.perf_counter()
        lock = client.lock(name, timeout=30)
        await lock.acquire()
        await lock.release()
        times.append(time.perf_counter() - start)


async def main(url, scenario, seconds):
    client = redis.Redis.from_url(url)
    names = {
        "alone": ["alone"],
        "names": [f"name-{task}" for task in range(64)],
        "one": ["one"] * 32,
    }[scenario]
    # The first round warms up.
    for limit in (1, seconds):
        times = []
        until = time.perf_counter() + limit
        await asyncio.gather(*(work(client, name, until, times) for name in names))
    times.sort()
    print(f"{times[len(times) // 2] * 1e6:.1f} {len(times) / seconds:.0f}")
    await client.aclose()


asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
