package org.example.orders;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import java.io.IOException;
import org.apache.arrow.flight.ErrorFlightMetadata;
import org.apache.arrow.flight.FlightRuntimeException;
import org.apache.arrow.flight.FlightStatusCode;

/** A broker's error for a refused call or batch, or the reason why there is no answer. */
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

  /** The error with a broker's description. */
  static BrokerException of(Body body, Throwable cause) {
    // Every batch has a stamp, so a batch with an unknown outcome can be retried.
    boolean mayPass = body.retriable() || body.code().equals("UNKNOWN_OUTCOME");
    String message = "[%s] %s (%s)".formatted(body.code(), body.message(), body.hint());
    return new BrokerException(message, mayPass, cause);
  }

  /** The error of a call: that of the broker in the trailer, or else that of gRPC. */
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

  /** A transient error. */
  static BrokerException passing(String message) {
    return new BrokerException(message, true, null);
  }

  /** Whether a retry of the call may succeed, perhaps at another broker. */
  boolean mayPass() {
    return mayPass;
  }
}
