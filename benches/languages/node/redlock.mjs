// node-redlock on ioredis, with its defaults, but without a limit on retries. Arguments: URL, scenario, seconds.
import { performance } from "node:perf_hooks";
import Redis from "ioredis";
import Redlock from "redlock";

const [url, scenario, seconds] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const client = new Redis(url);
const redlock = new Redlock([client], { retryCount: -1 });

async function work(name, until, times) {
  while (performance.now() < until) {
    const start = performance.now();
    const lock = await redlock.lock(name, 30_000);
    await lock.unlock();
    times.push(performance.now() - start);
  }
}

const names = {
  alone: ["alone"],
  names: Array.from({ length: 64 }, (_, task) => `name-${task}`),
  one: Array.from({ length: 32 }, () => "one"),
}[scenario];
let times = [];
// The first round warms up.
for (const limit of [1, seconds]) {
  times = [];
  const until = performance.now() + limit * 1000;
  await Promise.all(names.map((name) => work(name, until, times)));
}
times.sort((a, b) => a - b);
console.log((times[times.length >> 1] * 1000).toFixed(1), (times.length / seconds).toFixed(0));
client.disconnect();
