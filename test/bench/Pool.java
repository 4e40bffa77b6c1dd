/*
 * The costs of HikariCP, whose pool serves the threads of one process.
 *
 *   Pool pair URL PASSWORD N                  microseconds of getConnection and close
 *   Pool pairs URL PASSWORD THREADS POOL S    the same per second, all threads together
 *   Pool wait URL PASSWORD THREADS            microseconds from a close to the return of
 *                                             the next getConnection: p50, p99, max
 *
 * No statement is sent on the connections.
 */
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.LongAdder;

public class Pool {
    static HikariDataSource open(String url, String password, int size) {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(url);
        config.setUsername("remote_app");
        config.setPassword(password);
        config.setMaximumPoolSize(size);
        config.setConnectionTimeout(60000);
        return new HikariDataSource(config);
    }

    static double pair(HikariDataSource pool, int n) throws Exception {
        long start = System.nanoTime();
        for (int i = 0; i < n; i++) {
            pool.getConnection().close();
        }
        return (System.nanoTime() - start) / 1e3 / n;
    }

    static double pairs(HikariDataSource pool, int threads, double seconds) throws Exception {
        LongAdder done = new LongAdder();
        CountDownLatch ready = new CountDownLatch(threads);
        long[] end = new long[1];
        CountDownLatch go = new CountDownLatch(1);
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                try {
                    pool.getConnection().close();
                    ready.countDown();
                    go.await();
                    while (System.nanoTime() < end[0]) {
                        for (int k = 0; k < 20; k++) {
                            pool.getConnection().close();
                        }
                        done.add(20);
                    }
                } catch (Exception e) {
                    throw new RuntimeException(e);
                }
            });
            thread.start();
            all.add(thread);
        }
        ready.await();
        long start = System.nanoTime();
        end[0] = start + (long) (seconds * 1e9);
        go.countDown();
        for (Thread thread : all) {
            thread.join();
        }
        return done.sum() * 1e9 / (System.nanoTime() - start);
    }

    static void handOver(HikariDataSource pool, int threads) throws Exception {
        Connection held = pool.getConnection();
        long[] granted = new long[threads];
        long[] released = new long[threads];
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int me = i;
            Thread thread = new Thread(() -> {
                try {
                    Connection mine = pool.getConnection();
                    granted[me] = System.nanoTime();
                    released[me] = System.nanoTime();
                    mine.close();
                } catch (Exception e) {
                    throw new RuntimeException(e);
                }
            });
            thread.start();
            all.add(thread);
        }
        // wait until all threads sleep: one that is about to wait is not handed a connection
        while (pool.getHikariPoolMXBean().getThreadsAwaitingConnection() < threads
            || all.stream().anyMatch(t -> t.getState() != Thread.State.TIMED_WAITING)) {
            Thread.sleep(20);
        }
        held.close();
        for (Thread thread : all) {
            thread.join();
        }
        Integer[] order = new Integer[threads];
        for (int i = 0; i < threads; i++) {
            order[i] = i;
        }
        java.util.Arrays.sort(order, (a, b) -> Long.compare(granted[a], granted[b]));
        List<Double> us = new ArrayList<>();
        for (int i = 1; i < threads; i++) {
            us.add((granted[order[i]] - released[order[i - 1]]) / 1e3);
        }
        Collections.sort(us);
        System.out.printf("p50 %.1f%np99 %.1f%nmax %.1f%n", us.get(us.size() / 2),
            us.get(us.size() * 99 / 100), us.get(us.size() - 1));
    }

    public static void main(String[] args) throws Exception {
        int n = Integer.parseInt(args[3]);
        switch (args[0]) {
            case "pair":
                try (HikariDataSource pool = open(args[1], args[2], 1)) {
                    pair(pool, n); // the compiler's turn
                    pair(pool, n);
                    System.out.printf("%.4f%n", pair(pool, n));
                }
                break;
            case "pairs":
                try (HikariDataSource pool = open(args[1], args[2], Integer.parseInt(args[4]))) {
                    double seconds = Double.parseDouble(args[5]);
                    pairs(pool, n, seconds / 2);
                    System.out.printf("%.0f%n", pairs(pool, n, seconds));
                }
                break;
            default:
                try (HikariDataSource pool = open(args[1], args[2], 1)) {
                    handOver(pool, n);
                }
        }
    }
}
