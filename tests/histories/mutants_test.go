package main

import (
	"os"
	"slices"
	"testing"
	"time"
)

// mutation makes a history wrong, and says whether it could.
type mutation struct {
	name  string
	apply func(h *history, p *partition) bool
}

var mutations = []mutation{
	{"the last acknowledged record is lost", loseLast},
	{"two records are exchanged", exchange},
	{"a record is there twice", repeat},
	{"a record is left out of a read", leaveOut},
	{"a read is stale", makeStale},
	{"a read at the log end is stale", makeStaleAtLogEnd},
	{"a visible transaction was aborted", abortVisible},
	{"nobody has asked for a visible transaction", forgetCommit},
	{"an aborted transaction was committed", commitAborted},
	{"a cut goes through a transaction", splitByCut},
}

// TestMutantsOfRealHistoriesAreRefused makes each history of a folder wrong in each way that it can.
func TestMutantsOfRealHistoriesAreRefused(t *testing.T) {
	folder := os.Getenv("HISTORIES")
	if folder == "" {
		t.Skip("HISTORIES names no folder of histories")
	}
	files, err := filesIn([]string{folder})
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]int{}
	for _, path := range files {
		for _, m := range mutations {
			h, err := readHistory(path)
			if err != nil {
				t.Fatal(err)
			}
			if !m.applyTo(h) {
				continue
			}
			made[m.name]++
			if v := check(h, time.Minute); len(v.problems) == 0 {
				t.Errorf("%s: %s, and that is accepted", path, m.name)
			}
		}
	}
	for _, m := range mutations {
		t.Logf("%5d mutants: %s", made[m.name], m.name)
		if made[m.name] == 0 && len(files) >= 100 {
			t.Errorf("no history could be made wrong so: %s", m.name)
		}
	}
}

// applyTo tries one partition after the other.
func (m mutation) applyTo(h *history) bool {
	for _, p := range sortedPartitions(splitByPartition(h.events)) {
		if p.lost {
			continue
		}
		p.learn()
		if len(p.problems) == 0 && m.apply(h, p) {
			return true
		}
	}
	return false
}

// isAcknowledged says whether an append has to stay.
func isAcknowledged(e *event) bool {
	return e.Outcome == "ok" && e.Acks == "replicated" && e.Offset != nil
}

// isExact says whether a read was answered by a leader that nobody had replaced.
func (p *partition) isExact(e *event) bool {
	if e.Bounds == nil || e.Epoch == nil {
		return false
	}
	for _, each := range p.elections {
		if *each.Epoch > *e.Epoch && each.Call <= e.returned() {
			return false
		}
	}
	for _, each := range p.reads { // one of a later epoch tells of its election too
		if each.Epoch != nil && *each.Epoch > *e.Epoch && each.Call <= e.returned() {
			return false
		}
	}
	return true
}

// shorten has a read end at an offset, as if the log did.
func shorten(e *event, end int64) {
	if e.Bounds != nil {
		e.Bounds.LogEnd = min(e.Bounds.LogEnd, end)
		e.Bounds.HighWatermark = min(e.Bounds.HighWatermark, end)
		e.Bounds.LastStable = min(e.Bounds.LastStable, end)
	}
	e.From = min(e.From, end)
	if e.To != nil {
		to := min(*e.To, end)
		e.To = &to
	}
	e.Records = slices.DeleteFunc(e.Records, func(r record) bool { return r.offset >= end })
}

func loseLast(_ *history, p *partition) bool {
	for _, e := range p.appends {
		if !isAcknowledged(e) || *e.Offset+int64(len(e.Values)) != p.replicated.knownEnd(never) {
			continue
		}
		isMissed := func(r *event) bool { return before(e, r) && (p.isExact(r) || r.Complete && e.Transaction == "") }
		if !slices.ContainsFunc(p.reads, isMissed) {
			return false
		}
		for _, r := range p.reads {
			shorten(r, *e.Offset)
		}
		return true
	}
	return false
}

func exchange(_ *history, p *partition) bool {
	for _, a := range p.appends {
		for _, b := range p.appends {
			if !isAcknowledged(a) || !isAcknowledged(b) || !before(a, b) || len(a.Values) != len(b.Values) {
				continue
			}
			if *a.Offset+int64(len(a.Values)) != *b.Offset {
				continue
			}
			a.Values, b.Values = b.Values, a.Values
			a.Offset, b.Offset = b.Offset, a.Offset
			other := map[value]value{}
			for i := range a.Values {
				other[a.Values[i]], other[b.Values[i]] = b.Values[i], a.Values[i]
			}
			a.Values, b.Values = b.Values, a.Values
			for _, r := range p.reads {
				for i, each := range r.Records {
					if v, ok := other[each.value]; ok {
						r.Records[i].value = v
					}
				}
			}
			return true
		}
	}
	return false
}

func repeat(_ *history, p *partition) bool {
	for _, r := range p.reads {
		if r.Isolation != "read_replicated" || len(r.Records) == 0 {
			continue
		}
		end := r.end()
		r.Records = append(r.Records, record{end, r.Records[0].value})
		end++
		r.To = &end
		if r.Bounds != nil {
			r.Bounds.HighWatermark = max(r.Bounds.HighWatermark, end)
			r.Bounds.LogEnd = max(r.Bounds.LogEnd, end)
		}
		return true
	}
	return false
}

func leaveOut(_ *history, p *partition) bool {
	for _, r := range p.reads {
		for i, each := range r.Records {
			parted := slices.ContainsFunc(p.appends, func(e *event) bool {
				return e.Transaction != "" && slices.Contains(e.Values, each.value)
			})
			inside := i > 0 && i < len(r.Records)-1 && r.Isolation != "read_uncommitted"
			if inside && !parted && p.isKnownWithout(r, each) {
				r.Records = slices.Delete(r.Records, i, i+1)
				return true
			}
		}
	}
	return false
}

// isKnownWithout says whether something else shows that a record is there.
func (p *partition) isKnownWithout(read *event, its record) bool {
	isAcked := slices.ContainsFunc(p.appends, func(e *event) bool {
		return isAcknowledged(e) && slices.Contains(e.Values, its.value)
	})
	return isAcked || slices.ContainsFunc(p.reads, func(r *event) bool {
		return r != read && r.Isolation != "read_uncommitted" && slices.Contains(r.Records, its)
	})
}

func makeStale(_ *history, p *partition) bool {
	for _, e := range p.appends {
		for _, r := range p.reads {
			if isAcknowledged(e) && before(e, r) && p.isExact(r) && r.Isolation != "read_uncommitted" {
				shorten(r, *e.Offset)
				return true
			}
		}
	}
	return false
}

func makeStaleAtLogEnd(_ *history, p *partition) bool {
	for _, e := range p.appends {
		for _, r := range p.reads {
			same := e.Epoch != nil && r.Epoch != nil && *e.Epoch == *r.Epoch && r.Bounds != nil
			if same && e.Outcome == "ok" && before(e, r) && r.Isolation == "read_uncommitted" {
				shorten(r, *e.Offset)
				return true
			}
		}
	}
	return false
}

// visible finds a transaction of which a reader of committed records saw something.
func visible(h *history, p *partition) string {
	t := collectTransactions(h)
	for _, r := range p.reads {
		for _, each := range r.Records {
			if showsCommitted(r) && t.parts[each.value] != (part{}) {
				return t.parts[each.value].transaction
			}
		}
	}
	return ""
}

func forgetCommit(h *history, p *partition) bool {
	name := visible(h, p)
	h.events = slices.DeleteFunc(h.events, func(e *event) bool {
		return e.Op == "commit" && e.Transaction == name
	})
	return name != ""
}

func abortVisible(h *history, p *partition) bool {
	name := visible(h, p)
	for _, e := range h.events {
		if e.Op == "commit" && e.Transaction == name {
			e.Op, e.Outcome = "abort", "ok"
		}
	}
	return name != ""
}

func commitAborted(h *history, p *partition) bool {
	t := collectTransactions(h)
	for _, e := range p.appends {
		base, ok := p.replicated.base(e)
		isRead := slices.ContainsFunc(p.reads, func(r *event) bool {
			return showsCommitted(r) && r.From <= base && base < r.end()
		})
		if !ok || !isRead || e.Transaction == "" || t.fates[e.part()] != aborted {
			continue
		}
		for _, end := range h.events {
			if end.Op == "abort" && end.Outcome == "ok" && end.Transaction == e.Transaction {
				end.Op, end.Branches = "commit", []string{e.Branch}
				return true
			}
		}
	}
	return false
}

func splitByCut(h *history, p *partition) bool {
	byName := splitByPartition(h.events)
	for _, each := range sortedPartitions(byName) {
		each.learn()
	}
	t := collectTransactions(h)
	for _, e := range h.events {
		for i, at := range e.Offsets {
			if (partitionName{at.topic, at.partition}) != p.name {
				continue
			}
			for its, appends := range t.appends {
				for _, a := range appends {
					base, ok := p.replicated.base(a)
					if !ok || t.fates[its] != committed || a.where() != p.name || len(a.Values) < 2 {
						continue
					}
					e.Offsets[i].offset = base + 1
					return true
				}
			}
		}
	}
	return false
}
