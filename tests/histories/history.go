package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
)

// never is the return time of an operation that was not answered.
const never = int64(math.MaxInt64)

// value is a record: the JSON text that stands for it. No two records of a history are the same.
type value string

func (v *value) UnmarshalJSON(raw []byte) error {
	*v = value(raw)
	return nil
}

func (v value) MarshalJSON() ([]byte, error) { return []byte(v), nil }

// record is a value at its offset, [offset, value].
type record struct {
	offset int64
	value  value
}

func (r *record) UnmarshalJSON(raw []byte) error {
	return fromArray(raw, &r.offset, &r.value)
}

func (r record) MarshalJSON() ([]byte, error) { return json.Marshal([]any{r.offset, r.value}) }

// place is one partition's offset in a cut, [topic, partition, offset].
type place struct {
	topic     string
	partition int
	offset    int64
}

func (p *place) UnmarshalJSON(raw []byte) error {
	return fromArray(raw, &p.topic, &p.partition, &p.offset)
}

func (p place) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{p.topic, p.partition, p.offset})
}

func fromArray(raw []byte, targets ...any) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	if len(parts) != len(targets) {
		return fmt.Errorf("%s has %d members, not %d", raw, len(parts), len(targets))
	}
	for i, target := range targets {
		if err := json.Unmarshal(parts[i], target); err != nil {
			return err
		}
	}
	return nil
}

// bounds is what a leader told a reader, as one observation.
type bounds struct {
	LastStable    int64 `json:"lso"`
	HighWatermark int64 `json:"hw"`
	LogEnd        int64 `json:"leo"`
}

// event is a line of a history. README.md says which operation has which fields.
type event struct {
	Op          string   `json:"op"`
	Name        string   `json:"name,omitempty"`
	Client      string   `json:"client,omitempty"`
	Producer    string   `json:"producer,omitempty"`
	Topic       string   `json:"topic,omitempty"`
	Partition   int      `json:"partition"`
	Call        int64    `json:"call"`
	Return      *int64   `json:"return,omitempty"`
	Outcome     string   `json:"outcome,omitempty"`
	Values      []value  `json:"values,omitempty"`
	Transaction string   `json:"transaction,omitempty"`
	Branch      string   `json:"branch,omitempty"`
	Branches    []string `json:"branches,omitempty"`
	Acks        string   `json:"acks,omitempty"`
	Offset      *int64   `json:"offset,omitempty"`
	Epoch       *int64   `json:"epoch,omitempty"`
	Isolation   string   `json:"isolation,omitempty"`
	From        int64    `json:"from,omitempty"`
	To          *int64   `json:"to,omitempty"`
	Records     []record `json:"records,omitempty"`
	Bounds      *bounds  `json:"bounds,omitempty"`
	Snapshot    string   `json:"snapshot,omitempty"`
	Complete    bool     `json:"complete,omitempty"`
	Offsets     []place  `json:"offsets,omitempty"`

	line int
}

// part is what one producer wrote in one transaction; the zero part is no transaction.
type part struct{ transaction, branch string }

func (e *event) part() part { return part{e.Transaction, e.Branch} }

func (e *event) returned() int64 {
	if e.Return == nil {
		return never
	}
	return *e.Return
}

// end is the offset after the last that a read has covered.
func (e *event) end() int64 {
	if e.To != nil {
		return *e.To
	}
	if n := len(e.Records); n > 0 {
		return e.Records[n-1].offset + 1
	}
	return e.From
}

func (e *event) where() partitionName { return partitionName{e.Topic, e.Partition} }

func (e *event) String() string {
	switch e.Op {
	case "append":
		at := ""
		if e.Offset != nil {
			at = fmt.Sprintf(" at %d", *e.Offset)
		}
		return fmt.Sprintf("line %d: %s appends %v, %s%s", e.line, e.Client, e.Values, e.Outcome, at)
	case "read":
		told := ""
		if e.Bounds != nil {
			told = fmt.Sprintf(", told %+v", *e.Bounds)
		}
		return fmt.Sprintf("line %d: %s reads [%d, %d) as %s%s", e.line, e.Client, e.From, e.end(), e.Isolation, told)
	}
	return fmt.Sprintf("line %d: %s of %s by %s, %s", e.line, e.Op, e.Transaction, e.Client, e.Outcome)
}

type partitionName struct {
	topic  string
	number int
}

func (n partitionName) String() string { return fmt.Sprintf("%s/%d", n.topic, n.number) }

// history is all events of one run.
type history struct {
	name   string
	events []*event
}

// readHistory reads one from a file of JSON lines.
func readHistory(path string) (*history, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found, err := parseHistory(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if found.name == "" {
		found.name = path
	}
	return found, nil
}

func parseHistory(source io.Reader) (*history, error) {
	lines := bufio.NewScanner(source)
	lines.Buffer(nil, 1<<28)
	found := &history{}
	for number := 1; lines.Scan(); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		e := &event{line: number}
		if err := json.Unmarshal(lines.Bytes(), e); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if e.Op == "history" {
			found.name = e.Name
			continue
		}
		if err := e.validate(); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		found.events = append(found.events, e)
	}
	return found, lines.Err()
}

var levels = map[string]bool{
	"read_uncommitted": true, "read_replicated": true, "read_committed": true, "read_atomic": true,
}

func (e *event) validate() error {
	if e.returned() < e.Call {
		return fmt.Errorf("it returns before it is called")
	}
	known := map[string]bool{"ok": true, "failed": true, "unknown": true}
	switch e.Op {
	case "append":
		if len(e.Values) == 0 || !known[e.Outcome] {
			return fmt.Errorf("an append needs values, and an outcome: ok, failed or unknown")
		}
		if e.Acks != "leader" && e.Acks != "replicated" {
			return fmt.Errorf("an append needs acks: leader or replicated")
		}
	case "read":
		if !levels[e.Isolation] {
			return fmt.Errorf("%q is no isolation level", e.Isolation)
		}
	case "commit", "abort":
		if e.Transaction == "" || !known[e.Outcome] {
			return fmt.Errorf("the end of a transaction needs its name, and an outcome")
		}
	case "cut", "elected", "loss":
	default:
		return fmt.Errorf("%q is no operation", e.Op)
	}
	return nil
}
