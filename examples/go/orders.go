package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Order is one record. A nil pointer is a null.
type Order struct {
	ID       int64        `json:"id"`
	Customer *string      `json:"customer"`
	Amount   *json.Number `json:"amount"` // a decimal(10,2): a float would lose digits
	At       *time.Time   `json:"at"`
}

var (
	amountType = &arrow.Decimal128Type{Precision: 10, Scale: 2}
	atType     = &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}

	orderSchema = arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "customer", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "amount", Type: amountType, Nullable: true},
		{Name: "at", Type: atType, Nullable: true},
	}, nil)

	// The leader computes _offset, which is not stored.
	orderColumns = []string{"id", "customer", "amount", "at", "_offset"}
)

func decodeOrders(source io.Reader) ([]Order, error) {
	decoder := json.NewDecoder(source)
	var orders []Order
	for {
		var line struct {
			ID *int64 `json:"id"`
			Order
		}
		switch err := decoder.Decode(&line); {
		case errors.Is(err, io.EOF):
			return orders, nil
		case err != nil:
			return nil, fmt.Errorf("order %d: %w", len(orders)+1, err)
		case line.ID == nil:
			return nil, fmt.Errorf("order %d has no id", len(orders)+1)
		}
		line.Order.ID = *line.ID
		orders = append(orders, line.Order)
	}
}

// batchOf returns the orders as an Arrow batch, which the caller releases.
func batchOf(orders []Order) (arrow.RecordBatch, error) {
	builder := array.NewRecordBuilder(memory.DefaultAllocator, orderSchema)
	defer builder.Release()
	ids := builder.Field(0).(*array.Int64Builder)
	customers := builder.Field(1).(*array.StringBuilder)
	amounts := builder.Field(2).(*array.Decimal128Builder)
	times := builder.Field(3).(*array.TimestampBuilder)
	for _, order := range orders {
		ids.Append(order.ID)
		if order.Customer == nil {
			customers.AppendNull()
		} else {
			customers.Append(*order.Customer)
		}
		if order.Amount == nil {
			amounts.AppendNull()
		} else {
			amount, err := decimalOf(order.Amount.String())
			if err != nil {
				return nil, fmt.Errorf("order %d: %w", order.ID, err)
			}
			amounts.Append(amount)
		}
		if order.At == nil {
			times.AppendNull()
		} else {
			times.Append(arrow.Timestamp(order.At.UnixMicro()))
		}
	}
	return builder.NewRecordBatch(), nil
}

// decimalOf refuses amounts that amountType cannot represent. decimal128.FromString would round.
func decimalOf(text string) (decimal128.Num, error) {
	value, ok := new(big.Rat).SetString(text)
	if ok {
		value.Mul(value, big.NewRat(100, 1))
		if value.IsInt() && value.Num().BitLen() < 128 {
			if number := decimal128.FromBigInt(value.Num()); number.FitsInPrecision(amountType.Precision) {
				return number, nil
			}
		}
	}
	return decimal128.Num{}, fmt.Errorf("%s is not a %s", text, amountType)
}

// ordersOf returns the orders of a batch with orderColumns, and their offsets. They are valid as long
// as the batch is.
func ordersOf(batch arrow.RecordBatch) ([]Order, []int64, error) {
	for i, field := range orderSchema.Fields() {
		if found := batch.Schema().Field(i).Type; !arrow.TypeEqual(found, field.Type) {
			return nil, nil, fmt.Errorf("this is no topic of orders: its column %s is %s, not %s",
				field.Name, found, field.Type)
		}
	}
	ids := batch.Column(0).(*array.Int64)
	customers := batch.Column(1).(*array.String)
	amounts := batch.Column(2).(*array.Decimal128)
	times := batch.Column(3).(*array.Timestamp)
	orders := make([]Order, batch.NumRows())
	for i := range orders {
		order := &orders[i]
		order.ID = ids.Value(i)
		if customers.IsValid(i) {
			customer := customers.Value(i)
			order.Customer = &customer
		}
		if amounts.IsValid(i) {
			amount := json.Number(amounts.Value(i).ToString(amountType.Scale))
			order.Amount = &amount
		}
		if times.IsValid(i) {
			at := time.UnixMicro(int64(times.Value(i))).UTC()
			order.At = &at
		}
	}
	return orders, batch.Column(4).(*array.Int64).Int64Values(), nil
}
