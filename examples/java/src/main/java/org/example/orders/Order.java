package org.example.orders;

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/** One record. All fields but the id may be null. */
@JsonIgnoreProperties({"partition", "offset"}) // of orders that were read
record Order(
    @JsonProperty(required = true) long id, String customer, BigDecimal amount, Instant at) {

  private static final int DIGITS = 10;
  private static final int PLACES = 2;

  static final Schema SCHEMA =
      new Schema(
          List.of(
              new Field("id", FieldType.notNullable(new ArrowType.Int(64, true)), null),
              Field.nullable("customer", ArrowType.Utf8.INSTANCE),
              Field.nullable("amount", new ArrowType.Decimal(DIGITS, PLACES, 128)),
              Field.nullable("at", new ArrowType.Timestamp(TimeUnit.MICROSECOND, "UTC"))));

  /** The columns of a read: the leader computes _offset, which is not stored. */
  static final List<String> COLUMNS = List.of("id", "customer", "amount", "at", "_offset");

  Order {
    if (amount != null) {
      BigDecimal given = amount;
      try {
        amount = given.setScale(PLACES); // refuses to round
      } catch (ArithmeticException rounded) {
        throw new IllegalArgumentException(given + " has more than two decimal places", rounded);
      }
      if (amount.precision() > DIGITS) {
        throw new IllegalArgumentException(given + " has more than ten digits");
      }
    }
  }

  /** Fills a batch of SCHEMA. */
  static void fill(VectorSchemaRoot batch, List<Order> orders) {
    var ids = (BigIntVector) batch.getVector("id");
    var customers = (VarCharVector) batch.getVector("customer");
    var amounts = (DecimalVector) batch.getVector("amount");
    var times = (TimeStampMicroTZVector) batch.getVector("at");
    batch.allocateNew(); // every value is null until it is set
    for (int i = 0; i < orders.size(); i++) {
      Order order = orders.get(i);
      ids.setSafe(i, order.id);
      if (order.customer != null) {
        customers.setSafe(i, order.customer.getBytes(StandardCharsets.UTF_8));
      }
      if (order.amount != null) {
        amounts.setSafe(i, order.amount);
      }
      if (order.at != null) {
        times.setSafe(i, ChronoUnit.MICROS.between(Instant.EPOCH, order.at));
      }
    }
    batch.setRowCount(orders.size());
  }

  /** Checks that these are the columns of orders. */
  static void check(Schema found) {
    for (Field field : SCHEMA.getFields()) {
      ArrowType type = found.findField(field.getName()).getType();
      if (!type.equals(field.getType())) {
        throw new IllegalArgumentException(
            "this is no topic of orders: its column %s is %s, not %s"
                .formatted(field.getName(), type, field.getType()));
      }
    }
  }

  /** The order in a row of a batch with COLUMNS. */
  static Order at(VectorSchemaRoot batch, int row) {
    var ids = (BigIntVector) batch.getVector("id");
    var customers = (VarCharVector) batch.getVector("customer");
    var amounts = (DecimalVector) batch.getVector("amount");
    var times = (TimeStampMicroTZVector) batch.getVector("at");
    return new Order(
        ids.get(row),
        customers.isNull(row) ? null : customers.getObject(row).toString(),
        amounts.getObject(row),
        times.isNull(row) ? null : Instant.EPOCH.plus(times.get(row), ChronoUnit.MICROS));
  }
}
