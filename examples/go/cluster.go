package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	callTimeout = 15 * time.Second // of one call: a paused broker does not answer
	patience    = 60 * time.Second // the time limit of retries without progress
	pause       = 200 * time.Millisecond
	earliest    = -2 // the start of a partition
)

// security has the credentials for connections to brokers. Empty fields are not used.
type security struct {
	tlsCA, token, user, password string
}

func securityFromEnvironment() security {
	return security{
		tlsCA:    os.Getenv("ISOLOG_TLS_CA"),
		token:    os.Getenv("ISOLOG_TOKEN"),
		user:     os.Getenv("ISOLOG_USER"),
		password: os.Getenv("ISOLOG_PASSWORD"),
	}
}

// authorization is the header of every call. There is no handshake.
func (s security) authorization() string {
	switch {
	case s.token != "":
		return "Bearer " + s.token
	case s.user != "":
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(s.user+":"+s.password))
	}
	return ""
}

// cluster has a connection to each broker that was needed so far.
type cluster struct {
	brokers     []string // any of these answers any action
	transport   credentials.TransportCredentials
	header      string
	connections map[string]flight.Client
}

func connect(brokers []string, security security) (*cluster, error) {
	transport := insecure.NewCredentials()
	if security.tlsCA != "" {
		authority, err := os.ReadFile(security.tlsCA)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(authority) {
			return nil, fmt.Errorf("%s has no certificate", security.tlsCA)
		}
		transport = credentials.NewTLS(&tls.Config{RootCAs: roots})
	}
	return &cluster{brokers, transport, security.authorization(), map[string]flight.Client{}}, nil
}

func (c *cluster) close() {
	for _, client := range c.connections {
		client.Close()
	}
}

// at returns a connection to the broker at an address, host:port.
func (c *cluster) at(address string) (flight.Client, error) {
	if client := c.connections[address]; client != nil {
		return client, nil
	}
	client, err := flight.NewClientWithMiddleware(address, nil, []flight.ClientMiddleware{typedErrors},
		grpc.WithTransportCredentials(c.transport),
		// A batch may be larger than the 4 MiB that gRPC accepts by default.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err == nil {
		c.connections[address] = client
	}
	return client, err
}

// -- errors and retries ---------------------------------------------------------------------------

// brokerError is a broker's error for a refused call or batch.
type brokerError struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Hint      string `json:"hint"`
	Retriable bool   `json:"retriable"`
}

func (e *brokerError) Error() string {
	return fmt.Sprintf("[%s] %s (%s)", e.Code, e.Message, e.Hint)
}

// typedErrors converts the errors of all calls to those in the brokers' trailers.
var typedErrors = flight.ClientMiddleware{
	Unary: func(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		var trailer metadata.MD
		err := invoke(ctx, method, request, reply, connection, append(options, grpc.Trailer(&trailer))...)
		return typed(err, trailer)
	},
	Stream: func(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := open(ctx, description, connection, method, options...)
		return typedStream{stream}, err
	},
}

type typedStream struct{ grpc.ClientStream }

func (s typedStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return typed(err, s.Trailer())
}

func typed(err error, trailer metadata.MD) error {
	found := trailer.Get("grpc-status-details-bin")
	if err == nil || len(found) == 0 {
		return err
	}
	refused := new(brokerError)
	if json.Unmarshal([]byte(found[0]), refused) != nil {
		return err
	}
	return refused
}

// mayPass reports whether a retry of the call may succeed, perhaps at another broker.
func mayPass(err error) bool {
	if refused := (*brokerError)(nil); errors.As(err, &refused) {
		// Every batch has a stamp, so a batch with an unknown outcome can be retried.
		return refused.Retriable || refused.Code == "UNKNOWN_OUTCOME"
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// attempt makes calls until one succeeds, or its error is not retriable, or the time limit expires.
// A call that made progress before it failed reports that, which restarts the time limit.
func (c *cluster) attempt(ctx context.Context, call func(ctx context.Context, broker flight.Client) (progress bool, err error)) error {
	deadline := time.Now().Add(patience)
	for n := 0; ; n++ {
		client, err := c.at(c.brokers[n%len(c.brokers)])
		if err != nil {
			return err
		}
		callCtx, cancel := context.WithTimeout(ctx, callTimeout)
		if c.header != "" {
			callCtx = metadata.AppendToOutgoingContext(callCtx, "authorization", c.header)
		}
		progress, err := call(callCtx, client)
		cancel()
		if progress {
			deadline = time.Now().Add(patience)
		}
		switch {
		case err == nil || !mayPass(err) || ctx.Err() != nil:
			return plain(err)
		case time.Now().After(deadline):
			return fmt.Errorf("gave up after %v: %w", patience, plain(err))
		case n == 0 || progress:
			fmt.Fprintln(os.Stderr, "orders: trying again:", plain(err))
		}
		time.Sleep(pause)
	}
}

// plain drops the prefix that gRPC adds to the messages of its own errors.
func plain(err error) error {
	if found, ok := status.FromError(err); ok && err != nil {
		return errors.New(found.Message())
	}
	return err
}

// -- topics ---------------------------------------------------------------------------------------

type topic struct {
	name       string
	records    int64
	partitions int
}

func (c *cluster) topics(ctx context.Context) ([]topic, error) {
	var found []topic
	err := c.attempt(ctx, func(ctx context.Context, broker flight.Client) (bool, error) {
		found = nil
		stream, err := broker.ListFlights(ctx, &flight.Criteria{})
		for err == nil {
			var info *flight.FlightInfo
			if info, err = stream.Recv(); err == nil {
				found = append(found, topic{info.FlightDescriptor.Path[0], info.TotalRecords, len(info.Endpoint)})
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return false, err
	})
	return found, err
}

func (c *cluster) createTopic(ctx context.Context, name string, schema *arrow.Schema, partitions int) error {
	body := map[string]any{
		"topic":      name,
		"partitions": partitions,
		"schema_ipc": flight.SerializeSchema(schema, memory.DefaultAllocator), // JSON makes it base64
		// If the answer is lost, the retry finds the topic of this call.
		"token": fmt.Sprintf("orders-%d-%d", os.Getpid(), time.Now().UnixNano()),
	}
	return c.act(ctx, "create-topic", body, &struct{}{})
}

func (c *cluster) partitions(ctx context.Context, topic string) (int, error) {
	var info *flight.FlightInfo
	err := c.attempt(ctx, func(ctx context.Context, broker flight.Client) (_ bool, err error) {
		path := &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{topic}}
		info, err = broker.GetFlightInfo(ctx, path)
		return false, err
	})
	return len(info.GetEndpoint()), err
}

// act carries out an action at any broker, and decodes its result.
func (c *cluster) act(ctx context.Context, action string, body, result any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.attempt(ctx, func(ctx context.Context, broker flight.Client) (bool, error) {
		stream, err := broker.DoAction(ctx, &flight.Action{Type: action, Body: encoded})
		if err != nil {
			return false, err
		}
		answer, err := stream.Recv()
		if err != nil {
			return false, err
		}
		return false, json.Unmarshal(answer.Body, result)
	})
}

// leader looks up a partition's leader, and the ticket for the requested read.
func (c *cluster) leader(ctx context.Context, broker flight.Client, asked map[string]any) (flight.Client, *flight.Ticket, error) {
	command, err := json.Marshal(asked)
	if err != nil {
		return nil, nil, err
	}
	descriptor := &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command}
	info, err := broker.GetFlightInfo(ctx, descriptor)
	if err != nil {
		return nil, nil, err
	}
	endpoint := info.Endpoint[0] // the request is for one partition
	if len(endpoint.Location) == 0 {
		return nil, nil, status.Errorf(codes.Unavailable, "partition %v has no leader at the moment", asked["partition"])
	}
	location, err := url.Parse(endpoint.Location[0].Uri)
	if err != nil {
		return nil, nil, err
	}
	client, err := c.at(location.Host)
	return client, endpoint.Ticket, err
}

// -- reading --------------------------------------------------------------------------------------

// chunk is a batch of a partition. It is valid during the call that gets it.
type chunk struct {
	partition int
	batch     arrow.RecordBatch
}

// position is a reader's state after a batch: the next offset, and the leader epochs of the records
// before it, by which a new leader checks whether it has the same records. The last one of an answer
// has the bounds of the levels, unless the leader does not have them yet.
type position struct {
	Next    int64            `json:"next"`
	Lineage [][2]int64       `json:"lineage"`
	Bounds  *json.RawMessage `json:"bounds"`
}

// read passes the visible records, partition by partition, in the order of their offsets.
func (c *cluster) read(ctx context.Context, topic, isolation string, columns []string, consume func(chunk) error) error {
	partitions, err := c.partitions(ctx, topic)
	if err != nil {
		return err
	}
	var ends map[int]int64
	if isolation == "read_atomic" {
		if ends, err = c.atomicCut(ctx, topic); err != nil {
			return err
		}
	}
	for number := range partitions {
		asked := map[string]any{"topic": topic, "partition": number, "isolation": isolation, "columns": columns}
		if end, ok := ends[number]; ok {
			asked["end"] = end
		}
		if err := c.readPartition(ctx, number, asked, consume); err != nil {
			return fmt.Errorf("partition %d: %w", number, err)
		}
	}
	return nil
}

// atomicCut returns the end of each partition for read_atomic, a cut that no transaction crosses.
func (c *cluster) atomicCut(ctx context.Context, topic string) (map[int]int64, error) {
	var cut struct {
		Offsets map[string]map[int]int64 `json:"offsets"`
	}
	body := map[string]any{"topics": []any{map[string]any{"topic": topic}}}
	err := c.act(ctx, "atomic-cut", body, &cut)
	return cut.Offsets[topic], err
}

// readPartition continues at the next leader, from its last position, if a leader fails.
func (c *cluster) readPartition(ctx context.Context, number int, asked map[string]any, consume func(chunk) error) error {
	at := position{Next: earliest, Lineage: [][2]int64{}}
	return c.attempt(ctx, func(ctx context.Context, broker flight.Client) (progress bool, err error) {
		asked["start"], asked["start_lineage"] = at.Next, at.Lineage
		leader, ticket, err := c.leader(ctx, broker, asked)
		if err != nil {
			return false, err
		}
		stream, err := leader.DoGet(ctx, ticket)
		if err != nil {
			return false, err
		}
		reader, err := flight.NewRecordReader(stream)
		if err != nil {
			return false, err
		}
		defer reader.Release()
		for reader.Next() {
			if batch := reader.RecordBatch(); batch.NumRows() > 0 {
				if err := consume(chunk{number, batch}); err != nil {
					return true, err
				}
			}
			at = position{Lineage: [][2]int64{}}
			if err := json.Unmarshal(reader.LatestAppMetadata(), &at); err != nil {
				return progress, err
			}
			progress = true
		}
		if reader.Err() == nil && at.Bounds == nil {
			return progress, status.Error(codes.Unavailable, "the new leader does not know yet what is visible")
		}
		return progress, reader.Err()
	})
}

// -- writing --------------------------------------------------------------------------------------

// appender writes to a topic. It is idempotent: its stamps let brokers deduplicate retries.
type appender struct {
	cluster  *cluster
	topic    string
	producer struct {
		ID    int64 `json:"producer_id"`
		Epoch int64 `json:"epoch"`
	}
	sequences map[int]int // by partition, the sequence number of the next batch
}

type acknowledged struct {
	Offset int64        `json:"offset"`
	Count  int64        `json:"count"`
	Error  *brokerError `json:"error"`
}

func (c *cluster) newAppender(ctx context.Context, topic string) (*appender, error) {
	a := &appender{cluster: c, topic: topic, sequences: map[int]int{}}
	return a, c.act(ctx, "new-producer", map[string]any{}, &a.producer)
}

// append returns once the batch is on all in-sync replicas, even if the leader has changed.
func (a *appender) append(ctx context.Context, partition int, batch arrow.RecordBatch) (acknowledged, error) {
	command, err := json.Marshal(map[string]any{"topic": a.topic, "isolation": "read_committed"})
	if err != nil {
		return acknowledged{}, err
	}
	envelope, err := json.Marshal(map[string]any{
		"partition": partition,
		"stamp": map[string]any{
			"producer_id": a.producer.ID,
			"epoch":       a.producer.Epoch,
			"sequence":    a.sequences[partition],
		},
	})
	if err != nil {
		return acknowledged{}, err
	}
	var answer acknowledged
	err = a.cluster.attempt(ctx, func(ctx context.Context, broker flight.Client) (bool, error) {
		leader, _, err := a.cluster.leader(ctx, broker, map[string]any{"topic": a.topic, "partition": partition})
		if err != nil {
			return false, err
		}
		stream, err := leader.DoPut(ctx)
		if err != nil {
			return false, err
		}
		writer := flight.NewRecordWriter(stream, ipc.WithSchema(batch.Schema()))
		writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command})
		// If the send fails, the answer has the broker's reason.
		if err := writer.WriteWithAppMetadata(batch, envelope); err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		result, err := stream.Recv()
		if err != nil {
			return false, err
		}
		answer = acknowledged{}
		if err := json.Unmarshal(result.AppMetadata, &answer); err != nil {
			return false, err
		}
		if answer.Error != nil {
			return false, answer.Error
		}
		return true, errors.Join(writer.Close(), stream.CloseSend())
	})
	if err == nil {
		a.sequences[partition]++
	}
	return answer, err
}
