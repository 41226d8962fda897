import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * A GlobalKTable of Kafka Streams over a topic: from start() to RUNNING, then point reads.
 *
 * <p>Arguments: BOOTSTRAP TOPIC memory|rocksdb STATE_FOLDER json|raw READING_THREADS SECONDS_OF_READING tuned|default.
 * Prints a line of JSON. JVM start, class loading up to start() and the warming-up of the reads are not timed. Keys are
 * the numbers below the count of entries.
 */
public final class GlobalTable {
    private static final String STORE = "entries";
    private static final int WARM_UPS = 20; // seconds at most that the JIT compiler is given
    private static final int KEYS = 100_000; // picked at random, prepared beforehand
    private static final int STRIDE = 100; // reads between two looks at the clock

    private static volatile int sink; // keeps what is read alive, so that no read is optimised away

    public static void main(String[] arguments) throws Exception {
        Serde<?> values = arguments[4].equals("json") ? json() : Serdes.ByteArray();
        try (KafkaStreams streams = streams(arguments, values)) {
            CountDownLatch running = new CountDownLatch(1);
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING || now == KafkaStreams.State.ERROR) {
                    running.countDown();
                }
            });
            long used = used();
            long began = System.nanoTime();
            streams.start();
            if (!running.await(30, TimeUnit.MINUTES) || streams.state() != KafkaStreams.State.RUNNING) {
                throw new IllegalStateException("the table is " + streams.state());
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            double cpu = (used() - used) / 1e9;
            double launch = System.currentTimeMillis() / 1e3 - launched();
            double peak = status("VmHWM");
            System.gc();
            Runtime runtime = Runtime.getRuntime();
            double heap = (runtime.totalMemory() - runtime.freeMemory()) / 1048576.0;
            ReadOnlyKeyValueStore<String, Object> table = streams.store(
                    StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore()));
            long entries = table.approximateNumEntries();
            double rate = reads(table, Integer.parseInt(arguments[5]), Double.parseDouble(arguments[6]));
            if (streams.state() != KafkaStreams.State.RUNNING) {
                throw new IllegalStateException("the table ended as " + streams.state());
            }
            System.out.printf(
                    Locale.ROOT,
                    "{\"entries\": %d, \"seconds\": %f, \"launch_seconds\": %f, \"cpu\": %f, \"rss_mb\": %f, \"heap_mb\": %f, \"peak_mb\": %f,"
                            + " \"rate\": %f}%n",
                    entries, seconds, launch, cpu, status("VmRSS"), heap, peak, rate);
            System.out.flush();
        }
    }

    private static KafkaStreams streams(String[] arguments, Serde<?> values) {
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "benchmark");
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 0);
        for (Map.Entry<String, Object> each : consumer(arguments[7]).entrySet()) {
            properties.put(StreamsConfig.globalConsumerPrefix(each.getKey()), each.getValue());
        }
        KeyValueBytesStoreSupplier supplier = arguments[2].equals("memory")
                ? Stores.inMemoryKeyValueStore(STORE)
                : Stores.persistentTimestampedKeyValueStore(STORE);
        @SuppressWarnings("unchecked")
        Serde<Object> serde = (Serde<Object>) values;
        StreamsBuilder builder = new StreamsBuilder();
        builder.globalTable(
                arguments[1],
                Consumed.with(Serdes.String(), serde),
                Materialized.<String, Object>as(supplier).withKeySerde(Serdes.String()).withValueSerde(serde)
                        .withCachingDisabled());
        return new KafkaStreams(builder.build(), properties);
    }

    /** Large fetches and polls: the defaults are made for processing, not for reading a table. */
    private static Map<String, Object> consumer(String kind) {
        if (kind.equals("default")) {
            return Map.of();
        }
        return Map.of(
                ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 20_000,
                ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, 8 << 20,
                ConsumerConfig.FETCH_MAX_BYTES_CONFIG, 64 << 20,
                ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, 10,
                ConsumerConfig.RECEIVE_BUFFER_CONFIG, -1);
    }

    private static Serde<Object> json() {
        ObjectMapper mapper = new ObjectMapper();
        ObjectReader reader = mapper.readerFor(Map.class);
        return Serdes.serdeFrom(
                (topic, value) -> { // what comes after the start is decoded and encoded again on its way into the store
                    try {
                        return value == null ? null : mapper.writeValueAsBytes(value);
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                },
                (topic, bytes) -> {
                    try {
                        return bytes == null ? null : reader.readValue(bytes);
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                });
    }

    /** Returns how many reads a second all threads did together, once another second makes them no faster. */
    private static double reads(ReadOnlyKeyValueStore<String, Object> table, int threads, double seconds)
            throws InterruptedException {
        if (threads == 0) {
            return 0;
        }
        String[] keys = keys(table);
        double before = 0;
        double now = read(table, keys, threads, 1.0);
        for (int each = 0; each < WARM_UPS && (each < 2 || now > before * 1.05); each++) {
            before = Math.max(before, now);
            now = read(table, keys, threads, 1.0);
        }
        return read(table, keys, threads, seconds);
    }

    private static String[] keys(ReadOnlyKeyValueStore<String, Object> table) {
        Random random = new Random(7);
        int entries = entries(table);
        return random.ints(KEYS, 0, entries).mapToObj(Integer::toString).toArray(String[]::new);
    }

    /** The number of entries, also where the store only estimates it: the keys are the numbers below it. */
    private static int entries(ReadOnlyKeyValueStore<String, Object> table) {
        int entries = 1;
        while (table.get(Integer.toString(entries * 10 - 1)) != null) {
            entries *= 10;
        }
        return entries;
    }

    private static double read(ReadOnlyKeyValueStore<String, Object> table, String[] keys, int threads, double seconds)
            throws InterruptedException {
        LongAdder done = new LongAdder();
        long began = System.nanoTime();
        long until = began + (long) (seconds * 1e9);
        Thread[] readers = new Thread[threads];
        for (int number = 0; number < threads; number++) {
            int first = number * keys.length / threads;
            readers[number] = new Thread(() -> {
                int at = first;
                int sum = 0;
                while (System.nanoTime() < until) {
                    for (int each = 0; each < STRIDE; each++) {
                        sum += table.get(keys[at]) == null ? 1 : 0;
                        at = at + 1 == keys.length ? 0 : at + 1;
                    }
                    done.add(STRIDE);
                }
                sink += sum;
            });
            readers[number].start();
        }
        for (Thread reader : readers) {
            reader.join();
        }
        return done.sum() / ((System.nanoTime() - began) / 1e9);
    }

    /** Processor time of the process in nanoseconds, JIT compiler and collector included. */
    private static long used() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    /** When the process was launched, in seconds since 1970; the moment that main() began where nobody says. */
    private static double launched() {
        String given = System.getenv("BENCH_LAUNCHED");
        return given == null
                ? ManagementFactory.getRuntimeMXBean().getStartTime() / 1e3
                : Double.parseDouble(given);
    }

    /** A figure of /proc/self/status in MB; 0 where there is none. */
    private static double status(String name) throws IOException {
        Path path = Path.of("/proc/self/status");
        if (!Files.exists(path)) {
            return 0;
        }
        for (String line : Files.readAllLines(path)) {
            if (line.startsWith(name + ":")) {
                return Long.parseLong(line.replaceAll("\\D", "")) / 1024.0;
            }
        }
        return 0;
    }
}
