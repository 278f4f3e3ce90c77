package main

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// entry is a record of a model's log, or a hole: an offset of which nothing is known. Its hash is
// chained: it stands for all entries up to this one.
type entry struct {
	before *entry
	offset int64
	value  value // "" in a hole
	hash   uint64
}

func chain(hash uint64, v value) uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, hash)
	_, _ = h.Write([]byte(v))
	return h.Sum64()
}

// interval is a transaction's part in one partition, from its first record on.
type interval struct {
	part  part
	first int64
	after *interval
}

// state is that of one partition. A step never changes one: it makes another.
type state struct {
	last  *entry
	epoch int64
	open  *interval // the parts that are open, by their first offset
	ended *interval // those that are over
	ends  int
}

func (s state) tail() int64 {
	if s.last == nil {
		return 0
	}
	return s.last.offset + 1
}

func (s state) hash() uint64 { return s.hashAt(s.tail()) }

// hashAt is the chained hash of all entries below an offset.
func (s state) hashAt(offset int64) uint64 {
	at := s.last
	for at != nil && at.offset >= offset {
		at = at.before
	}
	if at == nil {
		return 0
	}
	return at.hash
}

func (s state) lastStable() int64 {
	stable := s.tail()
	for each := s.open; each != nil; each = each.after {
		stable = min(stable, each.first)
	}
	return stable
}

func (s state) with(v value) state {
	s.last = &entry{s.last, s.tail(), v, chain(s.hash(), v)}
	return s
}

func (s state) equals(other state) bool {
	same := s.tail() == other.tail() && s.hash() == other.hash() && s.epoch == other.epoch
	return same && s.ends == other.ends && s.openParts() == other.openParts()
}

func (s state) openParts() string {
	var found []string
	for each := s.open; each != nil; each = each.after {
		found = append(found, fmt.Sprint(each.part, each.first))
	}
	slices.Sort(found)
	return strings.Join(found, " ")
}

func has(list *interval, p part) bool {
	for ; list != nil; list = list.after {
		if list.part == p {
			return true
		}
	}
	return false
}

func without(list *interval, p part) *interval {
	if list == nil {
		return nil
	}
	if list.part == p {
		return list.after
	}
	return &interval{list.part, list.first, without(list.after, p)}
}

// step is an operation of a model: what it does with a state, or that it cannot happen in it.
type step interface {
	apply(s state) (bool, state)
	String() string
}

// appendStep appends records at the offset at which the history shows them.
type appendStep struct {
	event *event
	log   *content
	base  int64
}

func (a appendStep) apply(s state) (bool, state) {
	its := a.event.part()
	if s.tail() > a.base || a.log.knownEnd(a.base) > s.tail() || has(s.ended, its) {
		return false, s
	}
	s = fill(s, a.base)
	if its != (part{}) && !has(s.open, its) {
		s.open = &interval{its, a.base, s.open}
	}
	for _, v := range a.event.Values {
		s = s.with(v)
	}
	return true, s
}

func (a appendStep) String() string { return a.event.String() }

// fill adds what no read has shown and no producer was told of.
func fill(s state, upto int64) state {
	for s.tail() < upto {
		s = s.with("")
	}
	return s
}

// endStep ends a part of a transaction: its records are visible from now on, or never.
type endStep struct{ part part }

func (e endStep) apply(s state) (bool, state) {
	if has(s.ended, e.part) {
		return false, s
	}
	s.open, s.ended, s.ends = without(s.open, e.part), &interval{e.part, 0, s.ended}, s.ends+1
	return true, s
}

func (e endStep) String() string {
	return fmt.Sprintf("the end of transaction %s %s", e.part.transaction, e.part.branch)
}

// electStep is the election of a leader: older ones may answer what was so before.
type electStep struct{ event *event }

func (e electStep) apply(s state) (bool, state) {
	s.epoch = max(s.epoch, *e.event.Epoch)
	return true, s
}

func (e electStep) String() string { return e.event.String() }

// readStep is what a reader was told: a bound, or that the log goes at least so far, and records.
type readStep struct {
	event *event
	log   *content
	bound func(s state) int64
	told  *int64 // the bound that the reader was told
	seen  int64  // the bound is at least this
	whole bool   // nothing visible is between seen and the bound
	exact bool   // the told bound is the bound, and not only a lower one
	shown func(v value) bool
}

func (r readStep) apply(s state) (bool, state) {
	stale := r.event.Epoch != nil && *r.event.Epoch < s.epoch
	if r.event.Epoch != nil {
		s.epoch = max(s.epoch, *r.event.Epoch)
	}
	least := r.seen
	if r.told != nil {
		least = max(least, *r.told)
	}
	if r.log.knownEnd(least) > s.tail() {
		return false, s
	}
	s = fill(s, least)
	bound := r.bound(s)
	if bound < least || (r.told != nil && r.exact && !stale && bound != *r.told) {
		return false, s
	}
	if r.whole {
		for at := s.last; at != nil && at.offset >= r.seen; at = at.before {
			if at.offset < bound && at.value != "" && r.shown(at.value) {
				return false, s
			}
		}
	}
	return r.agrees(s), s
}

// agrees says whether the records that were read are those of the log: a read of all records folds
// them into the chained hash, one of committed records compares what is visible.
func (r readStep) agrees(s state) bool {
	records := r.event.Records
	if len(records) == 0 {
		return true
	}
	if !showsCommitted(r.event) {
		hash, next := s.hashAt(records[0].offset), records[0].offset
		for _, each := range records {
			if each.offset >= r.seen {
				break
			}
			hash, next = chain(hash, each.value), each.offset+1
		}
		return hash == s.hashAt(next)
	}
	at := s.last
	for at != nil && at.offset >= r.event.end() {
		at = at.before
	}
	for i := len(records) - 1; i >= 0; i-- {
		for at != nil && at.offset > records[i].offset {
			if at.value != "" && r.shown(at.value) {
				return false
			}
			at = at.before
		}
		if at == nil || at.offset != records[i].offset || at.value != records[i].value {
			return false
		}
		at = at.before
	}
	return true
}

func (r readStep) String() string { return r.event.String() }

// operation puts a step into the time in which it may take effect.
func operation(s step, call, returned int64) porcupine.Operation {
	return porcupine.Operation{Input: s, Call: call, Return: returned}
}

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		ok, after := input.(step).apply(before.(state))
		return ok, after
	},
	Equal: func(a, b any) bool { return a.(state).equals(b.(state)) },
	Hash:  func(s any) uint64 { return s.(state).hash() + uint64(s.(state).ends) },
}

// logEndModel is the log of one leader: its appends are in it once they are acknowledged, and reads
// at its end see all of them. What a later leader cuts off is not in that one's log.
func logEndModel(p *partition, number int64) []porcupine.Operation {
	log := p.epochs[number]
	var found []porcupine.Operation
	for _, e := range p.appends {
		base, ok := log.base(e)
		if !ok {
			continue
		}
		returned := never
		if e.Outcome == "ok" && e.Epoch != nil && *e.Epoch == number {
			returned = e.returned()
		}
		found = append(found, operation(&appendStep{plain(e), log, base}, e.Call, returned))
	}
	for _, e := range p.reads {
		if e.Epoch == nil || *e.Epoch != number || e.Isolation != "read_uncommitted" {
			continue
		}
		read := &readStep{event: e, log: log, bound: state.tail, seen: e.end(), exact: true}
		if e.Bounds != nil {
			read.told = &e.Bounds.LogEnd
		}
		found = append(found, operation(read, e.Call, e.returned()))
	}
	return found
}

// plain is an append without its transaction, for models that know none.
func plain(e *event) *event {
	copied := *e
	copied.Transaction, copied.Branch = "", ""
	return &copied
}

// appendsOf are the appends that are in the replicated log.
func appendsOf(p *partition, withParts bool) []porcupine.Operation {
	var found []porcupine.Operation
	for _, e := range p.appends {
		base, ok := p.replicated.base(e)
		if !ok {
			continue
		}
		returned := never
		if e.Outcome == "ok" && e.Acks == "replicated" {
			returned = e.returned()
		}
		if !withParts {
			e = plain(e)
		}
		found = append(found, operation(&appendStep{e, p.replicated, base}, e.Call, returned))
	}
	for _, e := range p.elections {
		found = append(found, operation(&electStep{e}, e.Call, e.Call))
	}
	return found
}

// replicatedModel is the log below the high watermark: acknowledged records stay in it, and leaders
// that were not replaced tell the high watermark as it is.
func replicatedModel(p *partition) []porcupine.Operation {
	found := appendsOf(p, false)
	for _, e := range p.reads {
		read := &readStep{event: e, log: p.replicated, bound: state.tail, exact: true, shown: showsAll}
		isReplicated := e.Isolation == "read_replicated"
		if e.Bounds != nil {
			read.told = &e.Bounds.HighWatermark
			read.seen = min(e.end(), e.Bounds.HighWatermark)
		} else if isReplicated {
			read.seen, read.whole = e.end(), e.Complete
		} else {
			continue
		}
		if showsCommitted(e) {
			copied := *e
			copied.Records = nil
			read.event = &copied
		}
		found = append(found, operation(read, e.Call, e.returned()))
	}
	return found
}

func showsAll(value) bool { return true }

// committedModel is the log below the last stable offset: transactions are visible in it as a whole,
// once they are over, and those that their clients were told to be over are.
func committedModel(p *partition, t *transactions, cuts []*event) []porcupine.Operation {
	found := appendsOf(p, true)
	var parts []part
	for _, each := range found {
		if a, ok := each.Input.(*appendStep); ok && a.event.Transaction != "" && !slices.Contains(parts, a.event.part()) {
			parts = append(parts, a.event.part())
		}
	}
	for _, each := range parts {
		call, returned := t.interval(each)
		found = append(found, operation(&endStep{each}, call, returned))
	}
	shown := func(v value) bool { return t.fates[t.parts[v]] == committed }
	isWhole := p.hasNoHoles()
	for _, e := range p.reads {
		read := &readStep{event: e, log: p.replicated, bound: state.lastStable, exact: isWhole, shown: shown}
		if showsCommitted(e) {
			read.seen, read.whole = e.end(), e.Complete
		} else if e.Bounds != nil {
			copied := *e
			copied.Records = nil
			read.event = &copied
		} else {
			continue
		}
		if e.Bounds != nil {
			read.told = &e.Bounds.LastStable
		}
		found = append(found, operation(read, e.Call, e.returned()))
	}
	for _, e := range cuts {
		for _, at := range e.Offsets {
			if (partitionName{at.topic, at.partition}) == p.name {
				read := &readStep{event: e, log: p.replicated, bound: state.lastStable, seen: at.offset, shown: shown}
				found = append(found, operation(read, e.Call, e.returned()))
			}
		}
	}
	return found
}

// hasNoHoles says whether each record below the last told high watermark is known. Else some
// transaction may hold back the last stable offset of which the history has no record.
func (p *partition) hasNoHoles() bool {
	end := p.replicated.knownEnd(never)
	for _, e := range p.reads {
		if e.Bounds != nil {
			end = max(end, e.Bounds.HighWatermark)
		}
	}
	return int64(len(p.replicated.known)) == end
}

// linearizable returns what is wrong, or "", and whether it was decided in time.
func linearizable(operations []porcupine.Operation, timeout time.Duration) (string, bool) {
	result, info := porcupine.CheckOperationsVerbose(model, operations, timeout)
	switch result {
	case porcupine.Ok:
		return "", true
	case porcupine.Unknown:
		return "", false
	}
	var longest []porcupine.Operation
	for _, each := range info.PartialLinearizationsOperations()[0] {
		if len(each) > len(longest) {
			longest = each
		}
	}
	done := map[step]bool{}
	var at state
	for _, each := range longest {
		done[each.Input.(step)] = true
		_, at = each.Input.(step).apply(at)
	}
	var stuck *porcupine.Operation
	for i, each := range operations {
		if !done[each.Input.(step)] && (stuck == nil || each.Return < stuck.Return) {
			stuck = &operations[i]
		}
	}
	return fmt.Sprintf("no order of the operations explains what clients were told; it fails for %v, when the log ends at %d, "+
		"its last stable offset is %d and its leader epoch %d", stuck.Input, at.tail(), at.lastStable(), at.epoch), true
}
