package org.example.orders;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.arrow.flight.Action;
import org.apache.arrow.flight.CallOption;
import org.apache.arrow.flight.CallOptions;
import org.apache.arrow.flight.Criteria;
import org.apache.arrow.flight.FlightCallHeaders;
import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightEndpoint;
import org.apache.arrow.flight.FlightInfo;
import org.apache.arrow.flight.FlightRuntimeException;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.HeaderCallOption;
import org.apache.arrow.flight.Location;
import org.apache.arrow.flight.PutResult;
import org.apache.arrow.flight.SyncPutListener;
import org.apache.arrow.flight.Ticket;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/** The brokers of a cluster, with a connection to each that was needed so far. */
final class Cluster implements AutoCloseable {
  /** The time limit of one call: a paused broker does not answer. */
  private static final Duration CALL_TIMEOUT = Duration.ofSeconds(15);

  /** The time limit of retries without progress. */
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  private static final Duration PAUSE = Duration.ofMillis(200);

  /** The start of a partition. */
  private static final long EARLIEST = -2;

  private final BufferAllocator allocator;
  private final List<Location> brokers = new ArrayList<>(); // any of these answers any action
  private final Map<Location, FlightClient> connections = new HashMap<>();
  private final byte[] authority;
  private final String authorization;

  /**
   * Creates a cluster without connections.
   *
   * @param addresses host:port of brokers, with commas between them
   * @param environment may have ISOLOG_TLS_CA, and ISOLOG_TOKEN, or ISOLOG_USER and ISOLOG_PASSWORD
   */
  Cluster(BufferAllocator allocator, String addresses, Map<String, String> environment)
      throws IOException {
    this.allocator = allocator;
    String file = environment.get("ISOLOG_TLS_CA");
    authority = file == null ? null : Files.readAllBytes(Path.of(file));
    for (String address : addresses.split(",")) {
      String scheme = authority == null ? "grpc://" : "grpc+tls://";
      brokers.add(new Location(URI.create(scheme + address)));
    }
    String token = environment.get("ISOLOG_TOKEN");
    String user = environment.get("ISOLOG_USER");
    if (token != null) {
      authorization = "Bearer " + token;
    } else if (user != null) {
      String both = user + ":" + environment.getOrDefault("ISOLOG_PASSWORD", "");
      byte[] bytes = both.getBytes(StandardCharsets.UTF_8);
      authorization = "Basic " + Base64.getEncoder().encodeToString(bytes);
    } else {
      authorization = null;
    }
  }

  @Override
  public void close() throws InterruptedException {
    for (FlightClient client : connections.values()) {
      client.close();
    }
  }

  private FlightClient at(Location location) {
    return connections.computeIfAbsent(
        location,
        place -> {
          FlightClient.Builder builder = FlightClient.builder(allocator, place);
          if (authority != null) {
            builder.trustedCertificates(new ByteArrayInputStream(authority));
          }
          return builder.build();
        });
  }

  // -- retries ------------------------------------------------------------------------------------

  /** One attempt of a call: its broker, and its options. */
  private final class Attempt {
    final FlightClient broker;
    private boolean progressed;

    Attempt(Location broker) {
      this.broker = at(broker);
    }

    /** The options of every call. There is no handshake. */
    CallOption[] options() {
      CallOption timeout = CallOptions.timeout(CALL_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
      if (authorization == null) {
        return new CallOption[] {timeout};
      }
      var headers = new FlightCallHeaders();
      headers.insert("authorization", authorization);
      return new CallOption[] {timeout, new HeaderCallOption(headers)};
    }

    /** Reports progress, which restarts the time limit of retries. */
    void progress() {
      progressed = true;
    }
  }

  private interface Call<T> {
    T make(Attempt attempt) throws BrokerException, IOException, InterruptedException;
  }

  /** Repeats a call until it succeeds, its error is not retriable, or the time limit expires. */
  private <T> T repeat(Call<T> call) throws BrokerException, IOException, InterruptedException {
    Instant deadline = Instant.now().plus(PATIENCE);
    for (int n = 0; ; n++) {
      var attempt = new Attempt(brokers.get(n % brokers.size()));
      BrokerException failure;
      try {
        return call.make(attempt);
      } catch (FlightRuntimeException error) {
        failure = BrokerException.of(error);
      } catch (BrokerException error) {
        failure = error;
      }
      if (attempt.progressed) {
        deadline = Instant.now().plus(PATIENCE);
      }
      if (!failure.mayPass() || Instant.now().isAfter(deadline)) {
        throw failure;
      }
      if (n == 0 || attempt.progressed) {
        System.err.println("orders: trying again: " + failure.getMessage());
      }
      Thread.sleep(PAUSE.toMillis());
    }
  }

  // -- topics -------------------------------------------------------------------------------------

  /** A topic, with its numbers of records and partitions. */
  record Topic(String name, long records, int partitions) {}

  List<Topic> topics() throws BrokerException, IOException, InterruptedException {
    return repeat(
        attempt -> {
          List<Topic> found = new ArrayList<>();
          for (FlightInfo each : attempt.broker.listFlights(Criteria.ALL, attempt.options())) {
            String name = each.getDescriptor().getPath().get(0);
            found.add(new Topic(name, each.getRecords(), each.getEndpoints().size()));
          }
          return found;
        });
  }

  void createTopic(String name, Schema schema, int partitions)
      throws BrokerException, IOException, InterruptedException {
    Map<String, Object> body =
        Map.of(
            "topic", name,
            "partitions", partitions,
            "schema_ipc", schema.serializeAsMessage(), // JSON makes it base64
            // If the answer is lost, the retry finds the topic of this call.
            "token", UUID.randomUUID());
    act("create-topic", body);
  }

  int partitions(String topic) throws BrokerException, IOException, InterruptedException {
    FlightDescriptor path = FlightDescriptor.path(topic);
    return repeat(attempt -> attempt.broker.getInfo(path, attempt.options()).getEndpoints().size());
  }

  /** Runs an action, at any broker, and returns its result. */
  private JsonNode act(String action, Map<String, Object> body)
      throws BrokerException, IOException, InterruptedException {
    var request = new Action(action, Json.MAPPER.writeValueAsBytes(body));
    return repeat(
        attempt -> {
          var results = attempt.broker.doAction(request, attempt.options());
          JsonNode result = Json.MAPPER.readTree(results.next().getBody());
          while (results.hasNext()) { // the call ends after its last result
            results.next();
          }
          return result;
        });
  }

  /** The leader of a partition, and the ticket for the requested read. */
  private record Leader(FlightClient client, Ticket ticket) {}

  private Leader leader(Attempt attempt, Map<String, Object> asked)
      throws BrokerException, IOException {
    var command = FlightDescriptor.command(Json.MAPPER.writeValueAsBytes(asked));
    FlightInfo info = attempt.broker.getInfo(command, attempt.options());
    FlightEndpoint endpoint = info.getEndpoints().get(0); // the request is for one partition
    if (endpoint.getLocations().isEmpty()) {
      throw BrokerException.passing(
          "partition " + asked.get("partition") + " has no leader at the moment");
    }
    return new Leader(at(endpoint.getLocations().get(0)), endpoint.getTicket());
  }

  // -- reading ------------------------------------------------------------------------------------

  /** Gets the batches of partitions. A batch is valid during the call. */
  interface Consumer {
    void accept(int partition, VectorSchemaRoot batch) throws IOException;
  }

  /**
   * A reader's state after a batch: the next offset, and the leader epochs of the records before
   * it, by which a new leader checks whether it has the same records. The last one of an answer
   * has the bounds of the levels, unless the leader does not have them yet.
   */
  @JsonIgnoreProperties(ignoreUnknown = true)
  private record Position(long next, List<List<Long>> lineage, JsonNode bounds) {}

  /** Passes the visible records, partition by partition, in the order of their offsets. */
  void read(String topic, String isolation, List<String> columns, Consumer consumer)
      throws BrokerException, IOException, InterruptedException {
    int partitions = partitions(topic); // partitions that are added later may not be in the cut
    JsonNode ends = isolation.equals("read_atomic") ? atomicCut(topic) : Json.MAPPER.nullNode();
    for (int number = 0; number < partitions; number++) {
      Map<String, Object> asked = new HashMap<>();
      asked.put("topic", topic);
      asked.put("partition", number);
      asked.put("isolation", isolation);
      asked.put("columns", columns);
      asked.put("end", ends.get(String.valueOf(number)));
      readPartition(number, asked, consumer);
    }
  }

  /** The end of each partition for read_atomic, a cut that no transaction crosses. */
  private JsonNode atomicCut(String topic)
      throws BrokerException, IOException, InterruptedException {
    JsonNode cut = act("atomic-cut", Map.of("topics", List.of(Map.of("topic", topic))));
    return cut.get("offsets").get(topic);
  }

  /** Continues at the next leader, from its last position, if a leader fails. */
  private void readPartition(int number, Map<String, Object> asked, Consumer consumer)
      throws BrokerException, IOException, InterruptedException {
    asked.put("start", EARLIEST);
    repeat(
        attempt -> {
          Leader leader = leader(attempt, asked);
          JsonNode bounds = null;
          try (FlightStream stream = leader.client.getStream(leader.ticket, attempt.options())) {
            while (stream.next()) {
              VectorSchemaRoot batch = stream.getRoot();
              if (batch.getRowCount() > 0) {
                consumer.accept(number, batch);
              }
              Position position =
                  Json.MAPPER.readValue(bytesOf(stream.getLatestMetadata()), Position.class);
              asked.put("start", position.next);
              asked.put("start_lineage", position.lineage == null ? List.of() : position.lineage);
              bounds = position.bounds;
              attempt.progress();
            }
          } catch (BrokerException | RuntimeException | IOException error) {
            throw error;
          } catch (Exception error) { // declared by close()
            throw new IOException(error);
          }
          if (bounds == null) {
            throw BrokerException.passing("the new leader does not know yet what is visible");
          }
          return null;
        });
  }

  // -- writing ------------------------------------------------------------------------------------

  /** The place of a stored batch. */
  @JsonIgnoreProperties(ignoreUnknown = true)
  record Acknowledged(
      @JsonProperty(required = true) long count, long offset, BrokerException.Body error) {}

  Appender newAppender(String topic) throws BrokerException, IOException, InterruptedException {
    return new Appender(topic, act("new-producer", Map.of()));
  }

  /** Writes to a topic. It is idempotent: its stamps let brokers deduplicate retries. */
  final class Appender {
    private final String topic;
    private final JsonNode producer;
    private final Map<Integer, Integer> sequences = new HashMap<>(); // the next batch's, by partition

    private Appender(String topic, JsonNode producer) {
      this.topic = topic;
      this.producer = producer;
    }

    /** Returns once the batch is on all in-sync replicas, even if the leader has changed. */
    Acknowledged append(int partition, VectorSchemaRoot batch)
        throws BrokerException, IOException, InterruptedException {
      int sequence = sequences.getOrDefault(partition, 0);
      byte[] command =
          Json.MAPPER.writeValueAsBytes(Map.of("topic", topic, "isolation", "read_committed"));
      byte[] envelope =
          Json.MAPPER.writeValueAsBytes(
              Map.of(
                  "partition",
                  partition,
                  "stamp",
                  Map.of(
                      "producer_id", producer.get("producer_id"),
                      "epoch", producer.get("epoch"),
                      "sequence", sequence)));
      Acknowledged answer =
          repeat(attempt -> put(attempt, partition, batch, command, envelope));
      sequences.put(partition, sequence + 1);
      return answer;
    }

    private Acknowledged put(
        Attempt attempt, int partition, VectorSchemaRoot batch, byte[] command, byte[] envelope)
        throws BrokerException, IOException, InterruptedException {
      Leader leader = leader(attempt, Map.of("topic", topic, "partition", partition));
      try (var answers = new SyncPutListener()) {
        var descriptor = FlightDescriptor.command(command);
        var writer = leader.client.startPut(descriptor, batch, answers, attempt.options());
        ArrowBuf metadata = allocator.buffer(envelope.length);
        metadata.writeBytes(envelope);
        writer.putNext(metadata); // which the writer owns now
        Acknowledged answer;
        try (PutResult result = answers.read()) {
          if (result == null) {
            throw BrokerException.passing("the broker ended the call without an answer");
          }
          byte[] json = bytesOf(result.getApplicationMetadata());
          answer = Json.MAPPER.readValue(json, Acknowledged.class);
        }
        writer.completed();
        writer.getResult();
        if (answer.error != null) {
          throw BrokerException.of(answer.error, null);
        }
        return answer;
      } catch (ExecutionException error) {
        if (error.getCause() instanceof FlightRuntimeException refused) {
          throw BrokerException.of(refused);
        }
        throw new IOException(error);
      }
    }
  }

  private static byte[] bytesOf(ArrowBuf buffer) {
    ByteBuffer view = buffer.nioBuffer();
    byte[] bytes = new byte[view.remaining()];
    view.get(bytes);
    return bytes;
  }
}
