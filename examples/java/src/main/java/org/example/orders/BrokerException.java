package org.example.orders;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import java.io.IOException;
import org.apache.arrow.flight.ErrorFlightMetadata;
import org.apache.arrow.flight.FlightRuntimeException;
import org.apache.arrow.flight.FlightStatusCode;

/** What a broker says of a call or of a batch that it refuses, or why there is no answer. */
final class BrokerException extends Exception {
  private static final long serialVersionUID = 1L;

  private static final String DETAILS = "grpc-status-details-bin";

  private final boolean mayPass;

  private BrokerException(String message, boolean mayPass, Throwable cause) {
    super(message, cause);
    this.mayPass = mayPass;
  }

  /** The JSON object of an error. */
  @JsonIgnoreProperties(ignoreUnknown = true)
  record Body(String code, String message, String hint, boolean retriable) {}

  /** The error that a broker describes. */
  static BrokerException of(Body body, Throwable cause) {
    // Every batch has a stamp, so a batch whose fate is unknown can be sent again.
    boolean mayPass = body.retriable() || body.code().equals("UNKNOWN_OUTCOME");
    String message = "[%s] %s (%s)".formatted(body.code(), body.message(), body.hint());
    return new BrokerException(message, mayPass, cause);
  }

  /** The error of a call: the broker's own if it has sent one, in the trailer, and else gRPC's. */
  static BrokerException of(FlightRuntimeException error) {
    ErrorFlightMetadata trailer = error.status().metadata();
    if (trailer != null && trailer.containsKey(DETAILS)) { // getByte throws if it has none
      try {
        return of(Json.MAPPER.readValue(trailer.getByte(DETAILS), Body.class), error);
      } catch (IOException notOurs) {
        error.addSuppressed(notOurs);
      }
    }
    FlightStatusCode code = error.status().code();
    Throwable cause = error.status().cause();
    String reason = cause == null || cause.getCause() == null ? "" : ": " + cause.getCause().getMessage();
    return new BrokerException(
        error.status().description() + reason,
        code == FlightStatusCode.UNAVAILABLE || code == FlightStatusCode.TIMED_OUT,
        error);
  }

  /** An error that passes by itself. */
  static BrokerException passing(String message) {
    return new BrokerException(message, true, null);
  }

  /** Whether the same call may succeed later, perhaps at another broker. */
  boolean mayPass() {
    return mayPass;
  }
}
