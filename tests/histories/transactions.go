package main

import (
	"fmt"
	"maps"
	"slices"
)

type fate int

const (
	undetermined fate = iota
	committed
	aborted
)

// transactions knows what was decided about each part of each transaction.
type transactions struct {
	ends    map[string][]*event
	fates   map[part]fate
	why     map[part]string
	firsts  map[part]int64 // the call of its first append
	parts   map[value]part
	appends map[part][]*event
}

func collectTransactions(h *history) *transactions {
	t := &transactions{
		ends:    map[string][]*event{},
		fates:   map[part]fate{{}: committed},
		why:     map[part]string{},
		firsts:  map[part]int64{},
		parts:   map[value]part{},
		appends: map[part][]*event{},
	}
	for _, e := range h.events {
		switch {
		case e.Op == "commit" || e.Op == "abort":
			t.ends[e.Transaction] = append(t.ends[e.Transaction], e)
		case e.Op == "append" && e.Transaction != "":
			first, ok := t.firsts[e.part()]
			if !ok || e.Call < first {
				t.firsts[e.part()] = e.Call
			}
			t.appends[e.part()] = append(t.appends[e.part()], e)
			for _, v := range e.Values {
				t.parts[v] = e.part()
			}
		}
	}
	for each := range t.firsts {
		t.fates[each], t.why[each] = t.told(each)
	}
	return t
}

// told is the fate of a part, as far as clients were told.
func (t *transactions) told(p part) (fate, string) {
	isAsked, isOpen, isAborted := false, false, false
	for _, e := range t.ends[p.transaction] {
		names := e.Branches == nil || slices.Contains(e.Branches, p.branch)
		switch {
		case e.Op == "commit" && e.Outcome == "ok" && names:
			return committed, fmt.Sprintf("it was committed (%v)", e)
		case e.Op == "commit" && e.Outcome == "ok":
			return aborted, fmt.Sprintf("another branch was committed (%v)", e)
		case e.Op == "abort" && e.Outcome == "ok":
			isAborted = true
		case e.Op == "commit" && names:
			isAsked = true
			isOpen = isOpen || e.Outcome == "unknown"
		}
	}
	switch {
	case isAborted:
		return aborted, "it was aborted"
	case !isAsked:
		return aborted, "nobody has asked to commit it"
	case !isOpen:
		return aborted, "its commit was refused"
	}
	return undetermined, ""
}

// interval is when the end of a part takes effect in its partitions.
func (t *transactions) interval(p part) (int64, int64) {
	call, returned := t.firsts[p], never
	if t.fates[p] == committed {
		call = never
		for _, e := range t.ends[p.transaction] {
			if e.Op != "commit" {
				continue
			}
			call = min(call, e.Call)
			if e.Outcome == "ok" {
				returned = min(returned, e.returned())
			}
		}
	} else {
		for _, e := range t.ends[p.transaction] {
			if e.Op == "abort" && e.Outcome == "ok" {
				returned = min(returned, e.returned())
			}
		}
	}
	return call, returned
}

func showsCommitted(e *event) bool {
	return e.Isolation == "read_committed" || e.Isolation == "read_atomic"
}

// checkVisible refuses reads that show what was aborted, or miss what was committed.
func (t *transactions) checkVisible(partitions []*partition) {
	for _, p := range partitions {
		for _, e := range p.reads {
			if !showsCommitted(e) {
				continue
			}
			for _, r := range e.Records {
				its := t.parts[r.value]
				if t.fates[its] == undetermined {
					t.fates[its], t.why[its] = committed, fmt.Sprintf("it was seen (%v)", e)
				}
				if t.fates[its] == aborted {
					p.refuse("record %s of transaction %s is visible, and %s (%v)", r.value, its.transaction, t.why[its], e)
				}
			}
		}
	}
	for _, p := range partitions {
		for _, e := range p.reads {
			if !showsCommitted(e) {
				continue
			}
			seen := map[int64]bool{}
			for _, r := range e.Records {
				seen[r.offset] = true
			}
			for _, offset := range p.replicated.between(e.From, e.end()) {
				v := p.replicated.records[offset].value
				if !seen[offset] && t.fates[t.parts[v]] == committed {
					p.refuse("a read misses record %s at %d; %s (%v)", v, offset, t.whyVisible(v), e)
				}
			}
		}
	}
}

// checkNowhere refuses records that had to stay, and that no whole read at the end has, where
// producers were not told offsets. Where they were, the models find it.
func (t *transactions) checkNowhere(p *partition) {
	for _, e := range p.appends {
		_, isThere := p.replicated.base(e)
		if isThere || e.Outcome != "ok" || e.Acks != "replicated" || t.fates[e.part()] != committed {
			continue
		}
		_, returned := t.interval(e.part())
		if e.Transaction == "" {
			returned = e.returned()
		}
		for _, r := range p.reads {
			if r.Complete && r.From == 0 && returned < r.Call {
				p.refuse("records were acknowledged, and are nowhere (%v; %v)", e, r)
				break
			}
		}
	}
}

func (t *transactions) whyVisible(v value) string {
	if t.parts[v] == (part{}) {
		return "it is in no transaction"
	}
	return "of transaction " + t.parts[v].transaction + ": " + t.why[t.parts[v]]
}

// checkCuts refuses atomic reads, and cuts, that have a part of a transaction only.
func (t *transactions) checkCuts(h *history, partitions map[partitionName]*partition) []string {
	var problems []string
	snapshots := snapshotsOf(h)
	for _, name := range slices.Sorted(maps.Keys(snapshots)) {
		if problem := t.checkCut(snapshots[name], partitions); problem != "" {
			problems = append(problems, fmt.Sprintf("atomic read %s: %s", name, problem))
		}
	}
	return problems
}

// span is what a cut covers of one partition.
type span struct {
	end int64
	by  *event
}

// snapshotsOf finds what each atomic read, and each cut, covers.
func snapshotsOf(h *history) map[string]map[partitionName]span {
	found := map[string]map[partitionName]span{}
	for _, e := range h.events {
		switch {
		case e.Op == "cut":
			ends := map[partitionName]span{}
			for _, at := range e.Offsets {
				ends[partitionName{at.topic, at.partition}] = span{at.offset, e}
			}
			found[fmt.Sprintf("of %s, line %d", e.Client, e.line)] = ends
		case e.Op == "read" && e.Isolation == "read_atomic" && e.Snapshot != "":
			name := fmt.Sprintf("%s of %s", e.Snapshot, e.Client)
			if found[name] == nil {
				found[name] = map[partitionName]span{}
			}
			found[name][e.where()] = span{e.end(), e}
		}
	}
	return found
}

func (t *transactions) checkCut(ends map[partitionName]span, partitions map[partitionName]*partition) string {
	below, above := map[string]string{}, map[string]string{}
	for its, appends := range t.appends {
		if t.fates[its] != committed {
			continue
		}
		for _, e := range appends {
			p, at := partitions[e.where()], ends[e.where()]
			if p == nil || p.lost || at.by == nil {
				continue
			}
			offset, ok := p.replicated.base(e)
			if !ok {
				continue
			}
			what := fmt.Sprintf("%v at %d of %v", e.Values, offset, p.name)
			if offset < at.end {
				below[its.transaction] = what
			}
			if offset+int64(len(e.Values)) > at.end {
				above[its.transaction] = what
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(below)) {
		if above[name] != "" {
			return fmt.Sprintf("it has a part of transaction %s: %s, and not %s", name, below[name], above[name])
		}
	}
	return ""
}
