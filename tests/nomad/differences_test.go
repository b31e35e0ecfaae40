package nomad

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// allowed is a difference from the agent's own drivers that may stay.
type allowed struct {
	// drivers and kinds it holds for, with spaces and commas between them; "*" is every one.
	drivers, kind string
	// field is a pattern of path.Match.
	field string
	// reason completes "differs, because".
	reason string
	// when tells which values may differ; nil: all.
	when func(theirs, ours string) bool
}

// isLoss: what stock has is the beginning of what we have.
func isLoss(theirs, ours string) bool { return strings.HasPrefix(ours, theirs) }

// isMissed: stock does not say what we say.
func isMissed(theirs, ours string) bool { return theirs == "false" && ours == "true" }

// mayDifferHere is every difference that the trial may find.
var mayDifferHere = []allowed{
	{"*", "*", "*: Driver Failure", "the message of a plugin comes through gRPC, and ours names the step that failed", nil},
	{"*", "log rotation", "files of alloc/logs", "an agent does not pass `logs` blocks to plugins: see [Logs](#logs)", nil},
	{"*", "log rotation", "web: stdout", "the same", nil},
	{"raw_exec, docker", "alloc exec of a missing path, alloc exec of a missing name, alloc exec of a missing path with terminal", "missing: *",
		"status 127 and a message on stderr; stock gives an error or 126. Stock's exec and java do not answer, and their task cannot be stopped", nil},
	{"raw_exec, docker", "alloc exec of no program", "not executable: *", "status 126 and a message on stderr", nil},
	{"exec, java", "alloc exec, alloc exec as a user", "ids: stdout", "the command has the group of the task's user; stock's has group 0", nil},
	{"exec, java", "user", "web: stdout", "the task has the group of its user; stock's has group 0", nil},
	{"exec", "*", "*: driver's events", "an event names each signal that the task does not notice, because it is pid 1 without a handler for it", nil},
	{"exec", "alloc restart", "web: Received", "the same: agents keep the last ten events of a task", nil},
	{"exec", "alloc restart", "web: Task Setup", "the same", nil},
	{"exec", "alloc restart", "web: events", "the same", nil},
	{"docker", "alloc fs", "files of /", "a file keeps how far the container's log has been read", nil},
	{"exec, java", "artifacts", "web: std*", "a task that is not root cannot read files of root: see [Capabilities](#capabilities-and-privileges)", nil},
	{"exec", "cap_add", "web: stdout", "only the capabilities that the job names, without Nomad's 13", nil},
	{"exec", "privileges, privileges of a user", "web: *", "isolation: see [Capabilities](#capabilities-and-privileges)", nil},
	{"exec", "command not executable, interpreter missing", "web: *", "found before the start: a driver failure, not a start that ends with 255", nil},
	{"raw_exec", "process", "web: descriptors", "the task inherits no descriptors of the executor", nil},
	{"raw_exec", "user", "web: stdout", "the task has the groups of its user; stock's keeps those of the agent as well", nil},
	{"exec, java, docker", "*", "*: driver's events", "an event names each signal that a command drops because it is pid 1", nil},
	{"exec, java, docker", "alloc restart", "web: Received", "the same: agents keep the last ten events of a task", nil},
	{"exec, java, docker", "alloc restart", "web: Task Setup", "the same", nil},
	{"exec, java, docker", "alloc restart", "web: events", "the same", nil},
	{"docker", "kill_signal", "web: *", "after `kill_timeout` stock sends the container's stop signal directly before it kills; a task may handle that in time and end with its own status", nil},
	{"docker", "alloc signal", "unknown signal", "both refuse a name that no signal has, each in its own words", nil},
	{"docker", "stats", "*: measured", "read from the cgroup, which counts more than the engine reports", nil},
	{"docker", "alloc exec", "*put: stdout", "stock may lose the end of a long output", nil},
	{drivers: "docker", kind: "alloc exec, alloc exec as a user, no last newline, entrypoint", field: "*: std*", when: isLoss,
		reason: "stock may lose the end of an output: of a session, and of a container that ends behind it; ours begins with what stock has"},
	{"docker", "large lines", "web: std*", "stock may write lines, and parts of long ones, twice: the engine sends them again when it rotates its log", nil},
	{"exec, java", "out of memory", "*: Terminated, oom_killed", "stock may miss that the kernel killed the task for lack of memory", isMissed},
	{"raw_exec", "privileges of a user", "web: CapBnd", "the task of a user has an empty bounding set", nil},
	{"java", "work_dir", "web: stdout", "the task starts in its `work_dir`, stock's in `/`; relative `class_path` and `jar_path` mean `/` in both", nil},
}

// covers tells whether a row allows a difference.
func (a allowed) covers(kind, driver, field string) bool {
	in := func(list, one string) bool { return list == "*" || slices.Contains(strings.Split(list, ", "), one) }
	// A slash is nothing special here.
	matched, err := path.Match(strings.ReplaceAll(a.field, "/", "|"), strings.ReplaceAll(field, "/", "|"))
	return in(a.drivers, driver) && in(a.kind, kind) && err == nil && matched
}

// compared are the fields that differ and no row allows; it notes which rows were needed.
func compared(kind, driver string, theirs, ours facts, rows []allowed, used map[int]bool) []string {
	fields := slices.Collect(maps.Keys(theirs))
	fields = slices.AppendSeq(fields, maps.Keys(ours))
	slices.Sort(fields)
	show := func(values facts, field string) string {
		if value, ok := values[field]; ok {
			return fmt.Sprintf("%q", value)
		}
		return "nothing"
	}
	var found []string
	for _, field := range slices.Compact(fields) {
		before, now := show(theirs, field), show(ours, field)
		if before == now {
			continue
		}
		at := slices.IndexFunc(rows, func(row allowed) bool {
			return row.covers(kind, driver, field) && (row.when == nil || row.when(theirs[field], ours[field]))
		})
		if at >= 0 {
			used[at] = true
			continue
		}
		found = append(found, fmt.Sprintf("%s\n  stock %s\n  ours  %s", field, before, now))
	}
	return found
}

// page is the list as docs/nomad.md has it, between two comments.
func page() string {
	text := "| drivers | jobs | what differs | why |\n|---|---|---|---|\n"
	for _, row := range mayDifferHere {
		kinds, drivers := row.kind, row.drivers
		if kinds == "*" {
			kinds = "all"
		}
		if drivers == "*" {
			drivers = "all"
		}
		text += fmt.Sprintf("| %s | %s | `%s` | %s |\n", drivers, kinds, row.field, row.reason)
	}
	return text
}

// The page on Nomad lists what the trial's table says; AGENTBIN_WRITE_GOLDEN=1 writes it.
func TestN1TrialIsInTheDocs(t *testing.T) {
	const begins, ends = "<!-- The list of tests/nomad/differences_test.go: AGENTBIN_WRITE_GOLDEN=1 writes it. -->\n\n", "\n<!-- The end of the list. -->\n"
	path := filepath.Join("..", "..", "docs", "nomad.md")
	text, err := os.ReadFile(path)
	must(t, err)
	before, rest, found := strings.Cut(string(text), begins)
	listed, after, ended := strings.Cut(rest, ends)
	if !found || !ended {
		t.Fatalf("%s has no place for the list", path)
	}
	if os.Getenv("AGENTBIN_WRITE_GOLDEN") != "" {
		must(t, os.WriteFile(path, []byte(before+begins+page()+ends+after), 0o644))
		return
	}
	if listed != page() {
		t.Errorf("%s: the list of differences is not that of the tests; AGENTBIN_WRITE_GOLDEN=1 writes it", path)
	}
}

// Each single value that is changed, added or left out is found, and a row allows what it names and nothing else.
func TestN1TrialComparesEveryField(t *testing.T) {
	base := facts{"client status": "complete", "web: state": "dead", "web: Terminated, exit_code": "0", "web: stdout": "hello\n"}
	if found := compared("batch", "exec", base, maps.Clone(base), nil, map[int]bool{}); len(found) != 0 {
		t.Errorf("equal facts differ: %q", found)
	}
	for field := range base {
		changed, lacking, more := maps.Clone(base), maps.Clone(base), maps.Clone(base)
		changed[field] += "x"
		delete(lacking, field)
		more[field+" 2"] = ""
		for what, other := range map[string]facts{"changed": changed, "lacking": lacking, "more": more} {
			for side := range 2 {
				theirs, ours := base, other
				if side == 1 {
					theirs, ours = other, base
				}
				found := compared("batch", "exec", theirs, ours, nil, map[int]bool{})
				if len(found) != 1 || !strings.Contains(found[0], field) {
					t.Errorf("%s %s: found %q", field, what, found)
				}
			}
		}
		for _, row := range []struct {
			allowed
			covers bool
		}{
			{allowed{drivers: "exec, java", kind: "*", field: field}, true},
			{allowed{drivers: "*", kind: "exit 3, batch", field: field}, true},
			{allowed{drivers: "java", kind: "batch", field: field}, false},
			{allowed{drivers: "exec", kind: "exit 3", field: field}, false},
			{allowed{drivers: "exec", kind: "batch", field: field + "?"}, false},
			{allowed{drivers: "exec", kind: "batch", field: field, when: isLoss}, true},
			{allowed{drivers: "exec", kind: "batch", field: field, when: isMissed}, false},
		} {
			used := map[int]bool{}
			found := compared("batch", "exec", base, changed, []allowed{row.allowed}, used)
			if (len(found) == 0) != row.covers || used[0] != row.covers {
				t.Errorf("%+v: found %q, used %t", row, found, used[0])
			}
		}
		// What we lack is not a loss of stock's.
		if found := compared("batch", "exec", changed, base, []allowed{{drivers: "*", kind: "*", field: "*", when: isLoss}}, map[int]bool{}); len(found) != 1 {
			t.Errorf("%s: found %q", field, found)
		}
	}
	missed := []allowed{{drivers: "*", kind: "*", field: "oom_killed", when: isMissed}}
	for theirs, count := range map[string]int{"false": 0, "true": 1} {
		ours := map[string]string{"false": "true", "true": "false"}[theirs]
		found := compared("batch", "exec", facts{"oom_killed": theirs}, facts{"oom_killed": ours}, missed, map[int]bool{})
		if len(found) != count {
			t.Errorf("stock says %s: found %q", theirs, found)
		}
	}
}
