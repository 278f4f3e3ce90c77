package org.example.orders;

import com.fasterxml.jackson.annotation.JsonUnwrapped;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.MappingIterator;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VectorSchemaRoot;

/**
 * Lists topics, creates a topic of orders, writes orders to it and reads them.
 *
 * <p>It needs only a broker that serves Arrow Flight (docs/flight.md), and no code of isolog.
 */
public final class Main {
  private static final String USAGE =
      """
      usage: orders BROKERS COMMAND

      BROKERS is host:port of a broker's flight_listen, or several with commas between them.

        list                    print the topics
        create TOPIC PARTITIONS create a topic of orders
        write TOPIC             append the orders on standard input, one JSON object a line
        read TOPIC [ISOLATION]  print the orders as JSON lines; read_uncommitted, read_replicated,
                                read_committed (the default) or read_atomic

      The environment has the rest: ISOLOG_TLS_CA, a file with the authority of the brokers'
      certificates; ISOLOG_TOKEN, or ISOLOG_USER and ISOLOG_PASSWORD.""";

  private Main() {}

  private static final class UsageException extends Exception {
    private static final long serialVersionUID = 1L;

    UsageException(String message) {
      super(message);
    }
  }

  public static void main(String[] args) throws InterruptedException {
    int exitCode = 0;
    try (BufferAllocator allocator = new RootAllocator()) {
      run(allocator, args);
    } catch (UsageException error) {
      System.err.println(error.getMessage());
      exitCode = 2;
    } catch (NoSuchFileException error) {
      System.err.println("orders: there is no file " + error.getMessage());
      exitCode = 1;
    } catch (BrokerException | IOException | IllegalArgumentException error) {
      System.err.println("orders: " + error.getMessage());
      exitCode = 1;
    }
    System.exit(exitCode);
  }

  private static void run(BufferAllocator allocator, String[] args)
      throws UsageException, BrokerException, IOException, InterruptedException {
    if (args.length < 2) {
      throw new UsageException(USAGE);
    }
    try (var cluster = new Cluster(allocator, args[0], System.getenv())) {
      switch (args[1] + " " + args.length) {
        case "list 2" -> list(cluster);
        case "create 4" -> cluster.createTopic(args[2], Order.SCHEMA, numberOf(args[3]));
        case "write 3" -> write(cluster, allocator, args[2], System.in);
        case "read 3" -> read(cluster, args[2], "read_committed");
        case "read 4" -> read(cluster, args[2], args[3]);
        default -> throw new UsageException(USAGE);
      }
    }
  }

  private static int numberOf(String text) throws UsageException {
    try {
      return Integer.parseInt(text);
    } catch (NumberFormatException error) {
      throw new UsageException(USAGE + "\n\n\"" + text + "\" is not a number of partitions");
    }
  }

  private static void list(Cluster cluster)
      throws BrokerException, IOException, InterruptedException {
    for (Cluster.Topic topic : cluster.topics()) {
      System.out.printf(
          "%s: %d records in %d partitions%n", topic.name(), topic.records(), topic.partitions());
    }
  }

  /** Places each order by its id, so that all versions of an order keep their sequence. */
  private static void write(
      Cluster cluster, BufferAllocator allocator, String topic, InputStream source)
      throws BrokerException, IOException, InterruptedException {
    List<Order> orders = decode(source);
    int partitions = cluster.partitions(topic);
    var placed = new TreeMap<Integer, List<Order>>();
    for (Order order : orders) {
      int number = (int) Long.remainderUnsigned(order.id(), partitions);
      placed.computeIfAbsent(number, none -> new ArrayList<>()).add(order);
    }
    Cluster.Appender appender = cluster.newAppender(topic);
    for (var each : placed.entrySet()) {
      try (VectorSchemaRoot batch = VectorSchemaRoot.create(Order.SCHEMA, allocator)) {
        Order.fill(batch, each.getValue());
        Cluster.Acknowledged acknowledged = appender.append(each.getKey(), batch);
        System.out.printf(
            "partition %d: %d records from offset %d%n",
            each.getKey(), acknowledged.count(), acknowledged.offset());
      }
    }
  }

  private static List<Order> decode(InputStream source) throws IOException {
    var orders = new ArrayList<Order>();
    try (MappingIterator<Order> values =
        Json.MAPPER.readerFor(Order.class).readValues(source)) {
      while (values.hasNextValue()) {
        orders.add(values.nextValue());
      }
    } catch (JsonProcessingException error) {
      throw new IOException(
          "order " + (orders.size() + 1) + ": " + error.getOriginalMessage(), error);
    }
    return orders;
  }

  /** An order, and where it is. */
  private record Found(int partition, long offset, @JsonUnwrapped Order order) {}

  private static void read(Cluster cluster, String topic, String isolation)
      throws BrokerException, IOException, InterruptedException {
    PrintStream out = new PrintStream(System.out, false);
    try {
      cluster.read(
          topic,
          isolation,
          Order.COLUMNS,
          (partition, batch) -> {
            Order.check(batch.getSchema());
            var offsets = (BigIntVector) batch.getVector("_offset");
            for (int row = 0; row < batch.getRowCount(); row++) {
              var found = new Found(partition, offsets.get(row), Order.at(batch, row));
              out.println(Json.MAPPER.writeValueAsString(found));
            }
          });
    } finally {
      out.flush();
    }
  }
}
