import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.Redisson;
import org.redisson.api.DeletedObjectListener;
import org.redisson.api.ExpiredObjectListener;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ShardedSubscriptionMode;
import org.redisson.config.SingleServerConfig;

/**
 * Uses Redisson as it is told to, by lines on the standard input: the number of the request, the client, the thread,
 * the operation, and its arguments. All words are URL-encoded. Each answer is a line on the standard output: the
 * number of the request, System.nanoTime() before and after, "ok" or "threw", and the result or the exception. A lock
 * belongs to the thread that took it, so each thread that is named is one of its own.
 */
public final class Agent {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Map<String, Peer> PEERS = new ConcurrentHashMap<>();

    private interface Work {
        Object run() throws Exception;
    }

    /** One Redisson client. */
    private static final class Peer {
        private final Map<String, Worker> workers = new ConcurrentHashMap<>();
        private final Map<String, RLock> locks = new ConcurrentHashMap<>();
        private volatile RedissonClient redisson;

        Worker worker(String name) {
            return workers.computeIfAbsent(name, Worker::new);
        }

        RLock lock(String name) {
            // The same object each time: it remembers its last lease time.
            return locks.computeIfAbsent(name, redisson::getLock);
        }
    }

    private static final class Worker {
        private final ExecutorService executor;
        private volatile Thread thread;

        Worker(String name) {
            executor = Executors.newSingleThreadExecutor(task -> {
                thread = new Thread(task, name);
                thread.setDaemon(true);
                return thread;
            });
        }
    }

    public static void main(String[] args) throws Exception {
        OUT.println("redisson " + Redisson.class.getPackage().getImplementationVersion());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            for (int i = 0; i < words.length; i++) {
                words[i] = URLDecoder.decode(words[i], StandardCharsets.UTF_8);
            }
            Peer peer = PEERS.computeIfAbsent(words[1], name -> new Peer());
            Worker worker = peer.worker(words[2]);
            String[] rest = Arrays.copyOfRange(words, 4, words.length);
            if (words[3].equals("interrupt")) {
                answer(words[0], () -> {
                    worker.thread.interrupt();
                    return "";
                });
            } else {
                worker.executor.execute(() -> answer(words[0], () -> perform(words[1], peer, words[3], rest)));
            }
        }
        // What is held stays, as in a crash.
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String number, Work work) {
        long began = System.nanoTime();
        String end;
        String result;
        try {
            end = "ok";
            result = String.valueOf(work.run());
        } catch (Throwable thrown) {
            end = "threw";
            result = thrown.toString();
        }
        long ended = System.nanoTime();
        String words = number + " " + began + " " + ended + " " + end + " ";
        OUT.println(words + URLEncoder.encode(result, StandardCharsets.UTF_8));
    }

    private static Object perform(String client, Peer peer, String operation, String[] words) throws Exception {
        switch (operation) {
            case "connect":
                peer.redisson = connect(words[0], Long.parseLong(words[1]), words[2], words[3]);
                return "";
            case "shutdown":
                peer.redisson.shutdown();
                return "";
            case "lock":
                peer.lock(words[0]).lock();
                return "";
            case "lockFor":
                peer.lock(words[0]).lock(Long.parseLong(words[1]), TimeUnit.MILLISECONDS);
                return "";
            case "lockInterruptibly":
                peer.lock(words[0]).lockInterruptibly();
                return "";
            case "tryLock":
                return peer.lock(words[0]).tryLock();
            case "tryLockFor":
                return peer.lock(words[0])
                        .tryLock(Long.parseLong(words[1]), Long.parseLong(words[2]), TimeUnit.MILLISECONDS);
            case "unlock":
                peer.lock(words[0]).unlock();
                return "";
            case "forceUnlock":
                return peer.lock(words[0]).forceUnlock();
            case "isLocked":
                return peer.lock(words[0]).isLocked();
            case "isHeldByCurrentThread":
                return peer.lock(words[0]).isHeldByCurrentThread();
            case "getHoldCount":
                return peer.lock(words[0]).getHoldCount();
            case "remainTimeToLive":
                return peer.lock(words[0]).remainTimeToLive();
            case "fencedLock":
                return peer.redisson.getFencedLock(words[0]).lockAndGetToken();
            case "fencedUnlock":
                peer.redisson.getFencedLock(words[0]).unlock();
                return "";
            case "readWrite":
                return readWrite(peer.redisson.getReadWriteLock(words[0]), words[1], words[2]);
            case "permits":
                return permits(peer.redisson.getPermitExpirableSemaphore(words[0]), words[1], words[2]);
            case "listen":
                RLock heard = peer.lock(words[0]);
                heard.addListener((DeletedObjectListener) name -> event(client, "deleted", name));
                heard.addListener((ExpiredObjectListener) name -> event(client, "expired", name));
                return "";
            case "hammer":
                return hammer(peer.redisson, words[0], Integer.parseInt(words[1]), Long.parseLong(words[2]),
                        Long.parseLong(words[3]), Long.parseLong(words[4]));
            case "count":
                return count(peer.redisson, words[0], words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]));
            default:
                throw new IllegalArgumentException(operation);
        }
    }

    private static void event(String client, String what, String name) {
        OUT.println("! " + client + " " + what + " " + URLEncoder.encode(name, StandardCharsets.UTF_8));
    }

    private static Object readWrite(RReadWriteLock both, String which, String operation) throws Exception {
        RLock lock = which.equals("read") ? both.readLock() : both.writeLock();
        switch (operation) {
            case "tryLock":
                return lock.tryLock();
            case "lock":
                lock.lock();
                return "";
            case "unlock":
                lock.unlock();
                return "";
            default:
                throw new IllegalArgumentException(operation);
        }
    }

    private static Object permits(RPermitExpirableSemaphore semaphore, String operation, String word)
            throws Exception {
        switch (operation) {
            case "trySetPermits":
                return semaphore.trySetPermits(Integer.parseInt(word));
            case "setPermits":
                semaphore.setPermits(Integer.parseInt(word));
                return "";
            case "availablePermits":
                return semaphore.availablePermits();
            case "acquire":
                return semaphore.acquire();
            case "acquireFor":
                return semaphore.acquire(Long.parseLong(word), TimeUnit.MILLISECONDS);
            case "tryAcquire":
                return semaphore.tryAcquire();
            case "release":
                semaphore.release(word);
                return "";
            default:
                throw new IllegalArgumentException(operation);
        }
    }

    /** The addresses are those of a cluster if a mode of subscriptions, or "default", is named. */
    private static RedissonClient connect(String addresses, long watchdog, String prefix, String mode)
            throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdog);
        config.setThreads(4);
        config.setNettyThreads(4);
        Object servers;
        if (mode.isEmpty()) {
            SingleServerConfig single = config.useSingleServer().setAddress(addresses);
            single.setConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
            servers = single;
        } else {
            ClusterServersConfig cluster = config.useClusterServers().addNodeAddress(addresses.split(","));
            cluster.setMasterConnectionMinimumIdleSize(1).setSlaveConnectionMinimumIdleSize(1);
            cluster.setSubscriptionConnectionMinimumIdleSize(1);
            if (!mode.equals("default")) {
                cluster.setShardedSubscriptionMode(ShardedSubscriptionMode.valueOf(mode));
            }
            servers = cluster;
        }
        if (!prefix.isEmpty()) {
            setPrefix(servers, prefix);
        }
        return Redisson.create(config);
    }

    /** By reflection: version 4 has the interface in another package. */
    private static void setPrefix(Object servers, String prefix) throws Exception {
        for (Method setter : servers.getClass().getMethods()) {
            Class<?>[] types = setter.getParameterTypes();
            if (setter.getName().equals("setNameMapper") && types.length == 1) {
                ClassLoader loader = Agent.class.getClassLoader();
                setter.invoke(servers, Proxy.newProxyInstance(loader, types, (self, method, args) -> {
                    switch (method.getName()) {
                        case "map":
                            return prefix + args[0];
                        case "unmap":
                            return ((String) args[0]).substring(prefix.length());
                        default:
                            return method.invoke(prefix, args);
                    }
                }));
                return;
            }
        }
        throw new NoSuchMethodException("setNameMapper");
    }

    /**
     * Threads that take one lock again and again: each holds it for so many microseconds, and pauses for so many
     * milliseconds in between. Returns when each call began and when it was granted.
     */
    private static String hammer(RedissonClient redisson, String name, int threads, long micros, long pause,
            long millis) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        StringBuilder waits = new StringBuilder();
        each(threads, () -> {
            RLock lock = redisson.getLock(name);
            while (System.nanoTime() < end) {
                long began = System.nanoTime();
                lock.lock();
                long granted = System.nanoTime();
                if (micros > 0) {
                    TimeUnit.MICROSECONDS.sleep(micros);
                }
                lock.unlock();
                synchronized (waits) {
                    waits.append(began).append(':').append(granted).append(' ');
                }
                if (pause > 0) {
                    Thread.sleep(pause);
                }
            }
            return null;
        });
        return waits.toString();
    }

    /** Threads that count without an atomic step. Returns how often they did. */
    private static long count(RedissonClient redisson, String name, String key, int threads, long millis)
            throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        AtomicLong turns = new AtomicLong();
        each(threads, () -> {
            RLock lock = redisson.getLock(name);
            RBucket<String> counter = redisson.getBucket(key, StringCodec.INSTANCE);
            while (System.nanoTime() < end) {
                lock.lock();
                try {
                    counter.set(Long.toString(Long.parseLong(counter.get()) + 1));
                    turns.incrementAndGet();
                } finally {
                    lock.unlock();
                }
            }
            return null;
        });
        return turns.get();
    }

    private static void each(int threads, Work work) throws Exception {
        List<Thread> all = new ArrayList<>();
        List<Throwable> failures = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (Throwable failure) {
                    synchronized (failures) {
                        failures.add(failure);
                    }
                }
            });
            thread.start();
            all.add(thread);
        }
        for (Thread thread : all) {
            thread.join();
        }
        if (!failures.isEmpty()) {
            throw new Exception(failures.get(0));
        }
    }
}
