// Orders lists topics, creates a topic of orders, writes orders to it and reads them.
//
// It needs only a broker that serves Arrow Flight (docs/flight.md), and no code of isolog.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
)

const usage = `usage: orders BROKERS COMMAND

BROKERS is host:port of a broker's flight_listen, or several with commas between them.

  list                    print the topics
  create TOPIC PARTITIONS create a topic of orders
  write TOPIC             append the orders on standard input, one JSON object a line
  read TOPIC [ISOLATION]  print the orders as JSON lines; read_uncommitted, read_replicated,
                          read_committed (the default) or read_atomic

The environment has the rest: ISOLOG_TLS_CA, a file with the authority of the brokers'
certificates; ISOLOG_TOKEN, or ISOLOG_USER and ISOLOG_PASSWORD.`

var errUsage = errors.New(usage)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	cluster, err := connect(strings.Split(args[0], ","), securityFromEnvironment())
	if err != nil {
		return err
	}
	defer cluster.close()

	switch command, rest := args[1], args[2:]; {
	case command == "list" && len(rest) == 0:
		return list(ctx, cluster)
	case command == "create" && len(rest) == 2:
		partitions, err := strconv.Atoi(rest[1])
		if err != nil {
			return fmt.Errorf("%w\n\n%q is not a number of partitions", errUsage, rest[1])
		}
		return cluster.createTopic(ctx, rest[0], orderSchema, partitions)
	case command == "write" && len(rest) == 1:
		return write(ctx, cluster, rest[0], os.Stdin)
	case command == "read" && len(rest) == 1:
		return read(ctx, cluster, rest[0], "read_committed")
	case command == "read" && len(rest) == 2:
		return read(ctx, cluster, rest[0], rest[1])
	}
	return errUsage
}

func list(ctx context.Context, cluster *cluster) error {
	topics, err := cluster.topics(ctx)
	for _, topic := range topics {
		fmt.Printf("%s: %d records in %d partitions\n", topic.name, topic.records, topic.partitions)
	}
	return err
}

// write chooses the partition by the id, so that all versions of an order keep their sequence.
func write(ctx context.Context, cluster *cluster, topic string, source io.Reader) error {
	orders, err := decodeOrders(source)
	if err != nil {
		return err
	}
	partitions, err := cluster.partitions(ctx, topic)
	if err != nil {
		return err
	}
	placed := make([][]Order, partitions)
	for _, order := range orders {
		number := int(uint64(order.ID) % uint64(partitions))
		placed[number] = append(placed[number], order)
	}
	appender, err := cluster.newAppender(ctx, topic)
	if err != nil {
		return err
	}
	for number, orders := range placed {
		if len(orders) == 0 {
			continue
		}
		batch, err := batchOf(orders)
		if err != nil {
			return err
		}
		acknowledged, err := appender.append(ctx, number, batch)
		batch.Release()
		if err != nil {
			return fmt.Errorf("partition %d: %w", number, err)
		}
		fmt.Printf("partition %d: %d records from offset %d\n",
			number, acknowledged.Count, acknowledged.Offset)
	}
	return nil
}

func read(ctx context.Context, cluster *cluster, topic, isolation string) error {
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	err := cluster.read(ctx, topic, isolation, orderColumns, func(chunk chunk) error {
		orders, offsets, err := ordersOf(chunk.batch)
		if err != nil {
			return err
		}
		for i, order := range orders {
			found := struct {
				Partition int   `json:"partition"`
				Offset    int64 `json:"offset"`
				Order
			}{chunk.partition, offsets[i], order}
			if err := encoder.Encode(found); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, out.Flush())
}
