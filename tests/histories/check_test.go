package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// planted has a fault for each pair of files, and what the checker says about it.
var planted = map[string]string{
	"lost-write":                    "high watermark: no order of the operations explains what clients were told",
	"lost-at-the-end":               "last stable offset: no order of the operations",
	"lost-by-failover":              `offset 1 has two records: "b"`,
	"lost-at-the-log-end":           "log end in epoch 1: no order of the operations",
	"duplicate":                     `record "b" is there twice: at 1`,
	"reordering":                    "records of one producer are reordered",
	"reordered-in-time":             "high watermark: no order of the operations",
	"torn-append":                   "the records of one append are not one after the other",
	"above-hw":                      "a read goes beyond 1, the bound of its level",
	"taken-back":                    `offset 1 has two records: "c"`,
	"stale-after-failover":          "high watermark: no order of the operations",
	"non-monotonic":                 "the high watermark goes back for a client",
	"aborted-read":                  `record "a" of transaction 7 is visible, and it was aborted`,
	"beyond-a-transaction":          `a read misses record "a" at 0`,
	"committed-and-not-visible":     "last stable offset: no order of the operations",
	"late-in-a-transaction":         "last stable offset: no order of the operations",
	"commit-of-a-later-transaction": `record "b" of transaction 8 is visible, and nobody has asked to commit it`,
	"fractured":                     "it has a part of transaction 7",
	"split-by-a-cut":                "it has a part of transaction 7",
	"split-between-branches":        "it has a part of transaction 7",
	"acknowledged-and-nowhere":      "records were acknowledged, and are nowhere",
	"invented":                      "which nobody has appended there, was read",
	"refused-and-there":             "records were refused, and are at 0",
}

func checkFile(t *testing.T, path string) verdict {
	t.Helper()
	h, err := readHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	v := check(h, time.Minute)
	if len(v.undecided) > 0 {
		t.Fatalf("%s: %v", path, v.undecided)
	}
	return v
}

func TestPlantedFaultsAreRefusedForTheirReason(t *testing.T) {
	for name, want := range planted {
		problems := checkFile(t, filepath.Join("planted", name+".refused.jsonl")).problems
		if !strings.Contains(strings.Join(problems, "\n"), want) {
			t.Errorf("%s: no %q in %q", name, want, problems)
		}
	}
}

func TestTheirSoundTwinsAreAccepted(t *testing.T) {
	for name := range planted {
		if problems := checkFile(t, filepath.Join("planted", name+".accepted.jsonl")).problems; len(problems) > 0 {
			t.Errorf("%s: %q", name, problems)
		}
	}
}

func TestEachPlantedFileIsOneOfAPair(t *testing.T) {
	files, _ := filepath.Glob("planted/*.jsonl")
	if len(files) != 2*len(planted) {
		t.Errorf("%d files for %d faults", len(files), len(planted))
	}
}

func TestWhatIsNoHistoryIsNotAccepted(t *testing.T) {
	for _, text := range []string{
		`{"op":"append"`,
		`{"op":"apend"}`,
		`{"op":"append","outcome":"ok","acks":"leader"}`,
		`{"op":"append","outcome":"fine","acks":"leader","values":[1]}`,
		`{"op":"read","isolation":"serializable"}`,
		`{"op":"read","isolation":"read_atomic","call":2,"return":1}`,
		`{"op":"read","isolation":"read_atomic","records":[[1]]}`,
	} {
		if _, err := parseHistory(strings.NewReader(text)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

func TestTheExitCodeSaysWhatCameOfIt(t *testing.T) {
	for path, want := range map[string]int{
		"planted/lost-write.accepted.jsonl": 0,
		"planted/lost-write.refused.jsonl":  1,
		"go.mod":                            2,
	} {
		var out strings.Builder
		if got := run([]string{path}, time.Minute, &out); got != want {
			t.Errorf("%s: %d, not %d\n%s", path, got, want, out.String())
		}
	}
}
