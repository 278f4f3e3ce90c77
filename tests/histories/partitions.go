package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// proof is a record of a log, and the event that shows that it is there.
type proof struct {
	value value
	by    *event
}

// content is what is known of one log: each offset has one record, and each record one offset.
type content struct {
	records map[int64]proof
	offsets map[value]int64
	known   []int64
}

func newContent() *content {
	return &content{records: map[int64]proof{}, offsets: map[value]int64{}}
}

// add returns what is wrong, or "".
func (c *content) add(offset int64, v value, by *event) string {
	if before, ok := c.records[offset]; ok && before.value != v {
		return fmt.Sprintf("offset %d has two records: %s (%v) and %s (%v)", offset, before.value, before.by, v, by)
	}
	if before, ok := c.offsets[v]; ok && before != offset {
		return fmt.Sprintf("record %s is there twice: at %d (%v) and at %d (%v)", v, before, c.records[before].by, offset, by)
	}
	if _, ok := c.records[offset]; !ok {
		c.records[offset], c.offsets[v] = proof{v, by}, offset
	}
	return ""
}

// base is the offset at which an append is in the log.
func (c *content) base(e *event) (int64, bool) {
	for i, v := range e.Values {
		if offset, ok := c.offsets[v]; ok {
			return offset - int64(i), true
		}
	}
	return 0, false
}

// place puts all records of an append where one of them is known to be.
func (c *content) place(e *event) string {
	base, ok := c.base(e)
	if !ok {
		return ""
	}
	for i, v := range e.Values {
		offset := base + int64(i)
		if at, known := c.offsets[v]; known && at != offset {
			return fmt.Sprintf("the records of one append are not one after the other: %s is at %d (%v)", v, at, e)
		}
		if problem := c.add(offset, v, e); problem != "" {
			return problem
		}
	}
	return ""
}

func (c *content) seal() { c.known = slices.Sorted(maps.Keys(c.records)) }

// knownEnd is the offset after the last known record before this one.
func (c *content) knownEnd(offset int64) int64 {
	i, _ := slices.BinarySearch(c.known, offset)
	if i == 0 {
		return 0
	}
	return c.known[i-1] + 1
}

// between yields the known records of a range, in order.
func (c *content) between(from, to int64) []int64 {
	i, _ := slices.BinarySearch(c.known, from)
	j, _ := slices.BinarySearch(c.known, to)
	return c.known[i:max(i, j)]
}

// partition is what a history says about one of them.
type partition struct {
	name       partitionName
	appends    []*event
	reads      []*event
	elections  []*event
	replicated *content
	epochs     map[int64]*content // the logs of its leaders, by epoch
	lost       bool               // a loss ends what is checked
	problems   []string
}

func (p *partition) refuse(format string, details ...any) {
	p.problems = append(p.problems, fmt.Sprintf("%v: ", p.name)+fmt.Sprintf(format, details...))
}

func (p *partition) epoch(number int64) *content {
	if p.epochs[number] == nil {
		p.epochs[number] = newContent()
	}
	return p.epochs[number]
}

// splitByPartition collects the events of each. What happens after a declared loss is left out.
func splitByPartition(events []*event) map[partitionName]*partition {
	found := map[partitionName]*partition{}
	losses := map[partitionName]int64{}
	for _, e := range events {
		if e.Op == "loss" {
			if before, ok := losses[e.where()]; !ok || e.Call < before {
				losses[e.where()] = e.Call
			}
		}
	}
	for _, e := range events {
		if e.Op != "append" && e.Op != "read" && e.Op != "elected" {
			continue
		}
		if e.Op == "elected" {
			e.Return = &e.Call
		}
		p := found[e.where()]
		if p == nil {
			p = &partition{name: e.where(), replicated: newContent(), epochs: map[int64]*content{}}
			found[e.where()] = p
		}
		if loss, ok := losses[p.name]; ok && (e.returned() >= loss) {
			p.lost = true
			if e.Op != "append" {
				continue
			}
			before := *e
			e = &before
			e.Return, e.Offset, e.Epoch = nil, nil, nil
			e.Outcome = "unknown"
		}
		switch e.Op {
		case "append":
			p.appends = append(p.appends, e)
		case "read":
			p.reads = append(p.reads, e)
		case "elected":
			p.elections = append(p.elections, e)
		}
	}
	byCall := func(a, b *event) int { return cmp.Compare(a.Call, b.Call) }
	for _, p := range found {
		slices.SortStableFunc(p.appends, byCall)
		slices.SortStableFunc(p.reads, byCall)
		slices.SortStableFunc(p.elections, byCall)
	}
	return found
}

// learn collects what the log holds, and refuses what contradicts itself.
func (p *partition) learn() {
	writers := map[value]*event{}
	for _, e := range p.appends {
		for _, v := range e.Values {
			writers[v] = e
		}
	}
	for _, e := range p.appends {
		if e.Outcome != "ok" || e.Offset == nil {
			continue
		}
		for i, v := range e.Values {
			if e.Acks == "replicated" {
				p.tryAdd(p.replicated, *e.Offset+int64(i), v, e)
			}
			if e.Epoch != nil {
				p.tryAdd(p.epoch(*e.Epoch), *e.Offset+int64(i), v, e)
			}
		}
	}
	for _, e := range p.reads {
		p.validateRead(e)
		for _, r := range e.Records {
			if writers[r.value] == nil {
				p.refuse("record %s, which nobody has appended there, was read (%v)", r.value, e)
				continue
			}
			if e.Isolation != "read_uncommitted" || (e.Bounds != nil && r.offset < e.Bounds.HighWatermark) {
				p.tryAdd(p.replicated, r.offset, r.value, e)
			}
			if e.Isolation == "read_uncommitted" && e.Epoch != nil {
				p.tryAdd(p.epoch(*e.Epoch), r.offset, r.value, e)
			}
		}
	}
	for _, e := range p.appends {
		logs := []*content{p.replicated}
		for _, number := range slices.Sorted(maps.Keys(p.epochs)) {
			logs = append(logs, p.epochs[number])
		}
		for _, log := range logs {
			if problem := log.place(e); problem != "" {
				p.refuse("%s", problem)
			}
		}
	}
	p.replicated.seal()
	for _, log := range p.epochs {
		log.seal()
	}
	p.checkRefused()
	p.checkProducers()
	p.checkClients()
}

func (p *partition) tryAdd(log *content, offset int64, v value, by *event) {
	if problem := log.add(offset, v, by); problem != "" {
		p.refuse("%s", problem)
	}
}

// validateRead refuses a read that contradicts itself.
func (p *partition) validateRead(e *event) {
	next := e.From
	for i, r := range e.Records {
		if r.offset < next {
			p.refuse("offset %d comes after a later one (%v)", r.offset, e)
			return
		}
		skips := e.Isolation == "read_committed" || e.Isolation == "read_atomic"
		first := i == 0 && e.To == nil
		if r.offset > next && !skips && !first {
			p.refuse("offset %d is missing in what was read (%v)", next, e)
			return
		}
		next = r.offset + 1
	}
	if e.end() < next {
		p.refuse("records from %d on were read that are not in the range (%v)", e.end(), e)
	}
	b := e.Bounds
	if b == nil {
		return
	}
	if b.LastStable > b.HighWatermark || b.HighWatermark > b.LogEnd {
		p.refuse("the told bounds are not in order (%v)", e)
	}
	bound := map[string]int64{"read_uncommitted": b.LogEnd, "read_replicated": b.HighWatermark}
	limit, ok := bound[e.Isolation]
	if !ok {
		limit = b.LastStable
	}
	if e.end() > max(limit, e.From) {
		p.refuse("a read goes beyond %d, the bound of its level (%v)", limit, e)
	}
}

// checkRefused refuses records whose producer was told that they are not in the log.
func (p *partition) checkRefused() {
	for _, e := range p.appends {
		if e.Outcome != "failed" || e.Transaction != "" {
			continue
		}
		if offset, ok := p.replicated.base(e); ok {
			p.refuse("records were refused, and are at %d (%v)", offset, e)
		}
	}
}

// checkProducers refuses records of one producer in another order than it has appended them.
func (p *partition) checkProducers() {
	last := map[string]*event{}
	for _, e := range p.appends {
		if e.Producer == "" {
			continue
		}
		offset, ok := p.replicated.base(e)
		if !ok {
			continue
		}
		if before := last[e.Producer]; before != nil {
			if earlier, _ := p.replicated.base(before); earlier > offset {
				p.refuse("records of one producer are reordered: %d is before %d (%v; %v)", offset, earlier, before, e)
			}
		}
		last[e.Producer] = e
	}
}

// checkClients refuses what goes back for one client: epochs, bounds and whole reads.
func (p *partition) checkClients() {
	byClient := map[string][]*event{}
	for _, e := range p.reads {
		byClient[e.Client] = append(byClient[e.Client], e)
	}
	for _, client := range slices.Sorted(maps.Keys(byClient)) {
		var epoch, high, stable, whole *event
		for _, e := range byClient[client] {
			if e.Epoch != nil {
				if epoch != nil && before(epoch, e) && *epoch.Epoch > *e.Epoch {
					p.refuse("a client reads in epoch %d after epoch %d (%v; %v)", *e.Epoch, *epoch.Epoch, epoch, e)
				}
				if epoch == nil || *e.Epoch >= *epoch.Epoch {
					epoch = e
				}
			}
			if b := e.Bounds; b != nil {
				if high != nil && before(high, e) && high.Bounds.HighWatermark > b.HighWatermark {
					p.refuse("the high watermark goes back for a client (%v; %v)", high, e)
				}
				if stable != nil && before(stable, e) && stable.Bounds.LastStable > b.LastStable {
					p.refuse("the last stable offset goes back for a client (%v; %v)", stable, e)
				}
				high, stable = e, e
			}
			if e.Isolation == "read_uncommitted" || !(e.Complete || e.Snapshot != "") {
				continue
			}
			if whole != nil && whole.Isolation == e.Isolation && before(whole, e) && e.From <= whole.From && e.end() < whole.end() {
				p.refuse("a later read of the same client ends earlier (%v; %v)", whole, e)
			}
			whole = e
		}
	}
}

func before(a, b *event) bool { return a.returned() < b.Call }
