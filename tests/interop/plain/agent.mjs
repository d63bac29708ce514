// The Node side of the tests of plain locks: node-redlock. As agent.py; arguments: the ports of the servers.

import { createInterface } from "node:readline";
import { Redis } from "ioredis";
import redlock from "redlock";

const Redlock = redlock.default ?? redlock;
const clients = process.argv.slice(2).map((port) => new Redis(Number(port), "127.0.0.1"));
const locks = new Map();

async function run(operation, name, ...numbers) {
  const [ttl, wait] = numbers.map(Number);
  if (operation === "try" || operation === "wait") {
    const delay = 20;
    const tries = operation === "wait" ? Math.ceil(wait / delay) : 0;
    const client = new Redlock(clients, { retryCount: tries, retryDelay: delay, retryJitter: 0 });
    client.on("error", () => {});
    locks.set(name, await client.acquire([name], ttl));
    return true;
  }
  const lock = locks.get(name);
  if (operation === "extend") {
    locks.set(name, await lock.extend(ttl));
    return true;
  }
  locks.delete(name);
  await lock.release();
  return true;
}

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(String(await run(...line.split(" "))));
  } catch (thrown) {
    const refused = thrown.name === "ExecutionError" || thrown.name === "ResourceLockedError";
    console.log(refused ? "false" : `error ${thrown.name} ${thrown.message}`.replaceAll("\n", " "));
  }
}
process.exit();
