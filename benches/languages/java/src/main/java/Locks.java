import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's RLock with its defaults, a thread for each task. Arguments: URL, scenario, seconds. */
public class Locks {
    private static long[] work(RedissonClient client, String name, long until) {
        List<Long> times = new ArrayList<>();
        while (System.nanoTime() < until) {
            long start = System.nanoTime();
            var lock = client.getLock(name);
            lock.lock();
            lock.unlock();
            times.add(System.nanoTime() - start);
        }
        return times.stream().mapToLong(Long::longValue).toArray();
    }

    private static long[] measure(RedissonClient client, String[] names, double seconds) throws Exception {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        long[][] all = new long[names.length][];
        Thread[] threads = new Thread[names.length];
        for (int task = 0; task < names.length; task++) {
            int own = task;
            threads[task] = new Thread(() -> all[own] = work(client, names[own], until));
            threads[task].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return Arrays.stream(all).flatMapToLong(Arrays::stream).sorted().toArray();
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]);
        RedissonClient client = Redisson.create(config);
        double seconds = Double.parseDouble(args[2]);
        String[] names;
        switch (args[1]) {
            case "alone": names = new String[] {"alone"}; break;
            case "names": names = IntStream.range(0, 64).mapToObj(task -> "name-" + task).toArray(String[]::new); break;
            default: names = IntStream.range(0, 32).mapToObj(task -> "one").toArray(String[]::new);
        }
        // The first round warms up, and a virtual machine needs some time for it.
        measure(client, names, 3);
        long[] times = measure(client, names, seconds);
        System.out.printf("%.1f %.0f%n", times[times.length / 2] / 1e3, times.length / seconds);
        client.shutdown();
    }
}
