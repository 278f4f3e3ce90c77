// Histories checks what clients of a replicated log were told against what the log promises. It
// reads histories (README.md) and shares no code with what made them.
//
// Its exit code is 0 if all are as promised, 1 if one is not, and 2 if one cannot be decided.
package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// verdict is what came of one history.
type verdict struct {
	problems   []string
	undecided  []string
	partitions int
	operations int
	lost       int
	gaps       int // partitions with offsets of which nobody knows the record
}

// check holds a history against every promise.
func check(h *history, timeout time.Duration) verdict {
	var v verdict
	byName := splitByPartition(h.events)
	partitions := sortedPartitions(byName)
	v.problems = checkWriters(h)
	for _, p := range partitions {
		p.learn()
		if p.lost {
			v.lost++
		} else if !p.hasNoHoles() {
			v.gaps++
		}
	}
	t := collectTransactions(h)
	t.checkVisible(partitions)
	for _, p := range partitions {
		t.checkNowhere(p)
	}
	v.problems = append(v.problems, t.checkCuts(h, byName)...)
	v.partitions, v.operations = len(partitions), len(h.events)
	var cuts []*event
	for _, e := range h.events {
		if e.Op == "cut" {
			cuts = append(cuts, e)
		}
	}
	for _, p := range partitions {
		if len(p.problems) == 0 {
			v.undecided = append(v.undecided, p.checkModels(t, cuts, timeout)...)
		}
		v.problems = append(v.problems, p.problems...)
	}
	return v
}

// checkModels looks for an order of the operations at each level; it returns what it cannot decide.
func (p *partition) checkModels(t *transactions, cuts []*event, timeout time.Duration) (undecided []string) {
	look := func(level string, operations []porcupine.Operation) {
		problem, decided := linearizable(operations, timeout)
		if problem != "" {
			p.refuse("%s: %s", level, problem)
		}
		if !decided {
			undecided = append(undecided, fmt.Sprintf("%v: %s: no verdict on %d operations within %v", p.name, level, len(operations), timeout))
		}
	}
	for number := range p.epochs {
		look(fmt.Sprintf("log end in epoch %d", number), logEndModel(p, number))
	}
	look("high watermark", replicatedModel(p))
	if !p.lost {
		look("last stable offset", committedModel(p, t, cuts))
	}
	return undecided
}

// checkWriters refuses a history in which a record is appended twice: nothing could be told from it.
func checkWriters(h *history) (problems []string) {
	writers := map[value]*event{}
	for _, e := range h.events {
		for _, v := range e.Values {
			if writers[v] != nil {
				problems = append(problems, fmt.Sprintf("record %s is appended twice (%v; %v)", v, writers[v], e))
			}
			writers[v] = e
		}
	}
	return problems
}

func sortedPartitions(byName map[partitionName]*partition) []*partition {
	var found []*partition
	for _, p := range byName {
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b *partition) int {
		return strings.Compare(a.name.String(), b.name.String())
	})
	return found
}

// filesIn finds the histories that were named: files, and all *.jsonl in folders.
func filesIn(names []string) ([]string, error) {
	var found []string
	for _, name := range names {
		err := filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && (path == name || strings.HasSuffix(path, ".jsonl")) {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// run checks all files, and returns the exit code.
func run(files []string, timeout time.Duration, out io.Writer) int {
	const problemsShown = 5
	var total verdict
	var lock sync.Mutex
	var workers sync.WaitGroup
	began, refused, undecided := time.Now(), 0, 0
	queue := make(chan string)
	for range runtime.GOMAXPROCS(0) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for path := range queue {
				h, err := readHistory(path)
				var v verdict
				if err != nil {
					h, v.undecided = &history{name: path}, []string{err.Error()}
				} else {
					v = check(h, timeout)
				}
				lock.Lock()
				for i, problem := range v.problems {
					if i < problemsShown {
						fmt.Fprintf(out, "REFUSED %s: %s\n", h.name, problem)
					}
				}
				for _, what := range v.undecided {
					fmt.Fprintf(out, "UNDECIDED %s: %s\n", h.name, what)
				}
				if len(v.problems) > 0 {
					refused++
				} else if len(v.undecided) > 0 {
					undecided++
				}
				total.partitions += v.partitions
				total.operations += v.operations
				total.lost += v.lost
				total.gaps += v.gaps
				lock.Unlock()
			}
		}()
	}
	for _, path := range files {
		queue <- path
	}
	close(queue)
	workers.Wait()
	fmt.Fprintf(out, "%d histories, %d partitions (%d up to a declared loss, %d with gaps), %d operations in %.1f s: %d refused, %d undecided\n",
		len(files), total.partitions, total.lost, total.gaps, total.operations, time.Since(began).Seconds(), refused, undecided)
	switch {
	case refused > 0:
		return 1
	case undecided > 0:
		return 2
	}
	return 0
}

func main() {
	timeout := flag.Duration("timeout", 30*time.Second, "how long one level of one partition may take")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "histories [-timeout 30s] FILE_OR_FOLDER...")
		flag.PrintDefaults()
	}
	flag.Parse()
	files, err := filesIn(flag.Args())
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no history was named")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(run(files, *timeout, os.Stdout))
}
