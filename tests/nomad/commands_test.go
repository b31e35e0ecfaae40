package nomad

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// apart are commands that no row gives, and why.
var apart = map[string]string{
	"acl":                              "tokens have roles here: `agentbin token`",
	"agent":                            "starts an agent of Nomad's",
	"config validate":                  "contacts no agent",
	"fmt":                              "contacts no agent",
	"job init":                         "contacts no agent",
	"login":                            "there is no single sign-on",
	"node pool init":                   "contacts no agent",
	"monitor export":                   "reads the journal of the machine",
	"operator client-state":            "contacts no agent",
	"operator gossip keyring generate": "contacts no agent",
	"operator gossip keyring install":  "there is one server",
	"operator gossip keyring remove":   "there is one server",
	"operator gossip keyring use":      "there is one server",
	"operator raft info":               "contacts no agent",
	"operator raft logs":               "contacts no agent",
	"operator raft state":              "contacts no agent",
	"operator root keyring remove":     "the key is a file in the data directory",
	"operator snapshot state":          "contacts no agent",
	"operator snapshot redact":         "contacts no agent",
	"quota":                            "Nomad Enterprise only",
	"recommendation":                   "Nomad Enterprise only",
	"sentinel":                         "Nomad Enterprise only",
	"setup":                            "contacts no agent",
	"tls":                              "contacts no agent",
	"ui":                               "opens a browser",
	"var init":                         "contacts no agent",
	"version":                          "contacts no agent",
	"volume init":                      "contacts no agent",
}

// always are commands that cannot fail, or cannot succeed, with an agent that answers, and why.
var always = map[string]string{
	"agent-info":                        "does not fail",
	"alloc pause":                       "Nomad Enterprise only",
	"deployment unblock":                "there is one region",
	"eval delete":                       "needs a paused evaluation broker",
	"license get":                       "Nomad Enterprise only",
	"node config":                       "does not fail",
	"node intro create":                 "does not fail",
	"node pool list":                    "does not fail",
	"operator api":                      "does not fail",
	"operator autopilot get-config":     "does not fail",
	"operator autopilot health":         "does not fail",
	"operator debug":                    "does not fail",
	"operator gossip keyring list":      "there is one server",
	"operator root keyring list":        "does not fail",
	"operator root keyring rotate":      "does not fail",
	"operator metrics":                  "does not fail",
	"operator raft list-peers":          "does not fail",
	"operator raft remove-peer":         "there is one server",
	"operator raft transfer-leadership": "there is one server",
	"operator scheduler get-config":     "does not fail",
	"operator utilization":              "Nomad Enterprise only",
	"scaling policy list":               "does not fail",
	"server force-leave":                "does not fail",
	"server join":                       "does not fail",
	"server members":                    "does not fail",
	"service info":                      "does not fail",
	"system gc":                         "does not fail",
	"system reconcile summaries":        "does not fail",
	"volume claim list":                 "does not fail",
	"volume claim delete":               "needs a sticky volume",
	"volume detach":                     "needs a node that is gone",
}

// shorter are commands under a second name.
var shorter = map[string]string{
	"action": "job action", "exec": "alloc exec", "fs": "alloc fs", "init": "job init", "inspect": "job inspect", "logs": "alloc logs",
	"plan": "job plan", "run": "job run", "start": "job start", "stop": "job stop", "validate": "job validate",
}

// commands are those of a real command line that its own help names, each with all of its words.
func commands(t *testing.T, nomad string) []string {
	t.Helper()
	listed := regexp.MustCompile(`(?m)^ {4}([a-z][a-z-]*) {2,}\S`)
	var found []string
	var look func(words []string)
	look = func(words []string) {
		command := exec.Command(nomad, append(slices.Clone(words), "-help")...)
		out, _ := command.CombinedOutput() //nolint:errcheck // its status is 127 where it lists commands
		text := string(out)
		at := strings.Index(text, "ubcommands:\n")
		if len(words) == 0 {
			at = strings.Index(text, "ommon commands:\n")
		}
		// `monitor` is a command beside `monitor export`: only commands have options, but for `operator gossip keyring`.
		if at < 0 || strings.Contains(text, "General Options:") && !strings.Contains(text, "individual subcommand help") {
			found = append(found, strings.Join(words, " "))
		}
		if at < 0 {
			return
		}
		for _, match := range listed.FindAllStringSubmatch(text[at:], -1) {
			if _, again := shorter[match[1]]; again && len(words) == 0 {
				continue
			}
			inner := append(slices.Clone(words), match[1])
			if name := strings.Join(inner, " "); apart[name] != "" {
				found = append(found, name)
			} else {
				look(inner)
			}
		}
	}
	look(nil)
	slices.Sort(found)
	return slices.Compact(found)
}

// TestEveryCommandHasItsRows holds that each command of the real command line is given in a way that succeeds and in one that fails,
// or that it is written down why not, and that docs/commands.md lists that; AGENTBIN_WRITE_GOLDEN=1 writes it. (P1)
func TestEveryCommandHasItsRows(t *testing.T) {
	needsItsRelease(t)
	var lines []string
	known := map[string]bool{}
	for _, command := range commands(t, setting(t, "NOMAD")) {
		known[command] = true
		if why, is := apart[command]; is {
			lines = append(lines, fmt.Sprintf("| `%s` | | | not tested: %s |", command, why))
			continue
		}
		var good, bad int
		var different []string
		for _, row := range slices.Concat(rows, csiRows) {
			if !row.isOf(command) {
				continue
			}
			if row.status == 0 {
				good++
			} else {
				bad++
			}
			if row.but != "" && !slices.Contains(different, row.but) {
				different = append(different, row.but)
			}
		}
		why, is := always[command]
		if (good == 0 || bad == 0) != is {
			t.Errorf("%s: %d rows with status 0, %d with another one, and the reason %q", command, good, bad, why)
		}
		remark := strings.Join(different, "; ")
		if remark == "" {
			remark = why
		}
		lines = append(lines, fmt.Sprintf("| `%s` | %d | %d | %s |", command, good, bad, remark))
	}
	for _, list := range []map[string]string{apart, always} {
		for command := range list {
			if !known[command] {
				t.Errorf("%s is no command", command)
			}
		}
	}
	path := filepath.Join("..", "..", "docs", "commands.md")
	text, err := os.ReadFile(path)
	must(t, err)
	const begins = "| command | status 0 | other status | remark |\n|---|---|---|---|\n"
	before, listed, found := strings.Cut(string(text), begins)
	if !found {
		t.Fatalf("%s has no place for the list", path)
	}
	wanted := strings.Join(lines, "\n") + "\n"
	if os.Getenv("AGENTBIN_WRITE_GOLDEN") != "" {
		must(t, os.WriteFile(path, []byte(before+begins+wanted), 0o644))
	} else if listed != wanted {
		t.Errorf("%s: the list of commands is not that of the tests; AGENTBIN_WRITE_GOLDEN=1 writes it", path)
	}
}

// drawn are words that are never the same twice: ids, times, durations, addresses, percentages, sizes that were measured. What the
// comparison does not see has to be one of these.
var drawn = regexp.MustCompile(`^\W*(` + strings.Join([]string{
	`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`, `[0-9a-f]{8}`, `[0-9a-f]{12}`, `[0-9a-f]{32}`,
	`(\w+/)?(periodic|dispatch)-\d+(-[0-9a-f]{8})?`,
	`\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d))?`, `\d\d:\d\d:\d\d`, `UTC`, `[+-]\d{4}`,
	`(\d+d)?(\d+h)?(\d+m)?(\d+(\.\d+)?(ms|µs|s))?`,
	`\d+\.\d+\.\d+\.\d+(:\d+)?`, `\d+(\.\d+)?%`, `(KiB|MiB|GiB|kB|MB|GB|B|MHz|GHz)`,
	`-+`,
}, "|") + `)\W*$`)

var (
	// A number before a unit was measured, and one after the word index is drawn.
	number    = regexp.MustCompile(`^\W*\d+(\.\d+)?(/\d+)?$`)
	unit      = regexp.MustCompile(`^(KiB|MiB|GiB|kB|MB|GB|B|MHz|GHz)(/.*)?\W*$`)
	index     = regexp.MustCompile(`index\W*( =)?$`)
	lookedFor = regexp.MustCompile(`^ *\d{4}-\d\d-\d\dT[\d:]+Z$`)
)

// seen says what change of an answer the comparison would not see: each word is another one, or missing, in its turn. Lines that it has
// looked at before are left out.
func seen(raw string, again map[string]bool) []string {
	whole := normal(raw)
	lines := strings.Split(raw, "\n")
	first := 0
	if at := strings.LastIndex(raw, "Monitoring deployment"); at >= 0 {
		// What is printed before the last look at a deployment depends on when it looks.
		first = strings.Count(raw, "\n")
		for first > 0 && !lookedFor.MatchString(lines[first]) {
			first--
		}
	}
	var blind []string
	for i, line := range lines[first:] {
		if again[line] || strings.Contains(line, " status changed: ") && strings.Contains(line, "Allocation ") {
			continue
		}
		again[line] = true
		words := strings.Fields(line)
		for j, word := range words {
			next := ""
			if j+1 < len(words) {
				next = words[j+1]
			}
			previous := strings.ToLower(strings.Join(words[max(0, j-4):j], " "))
			isMeasured := number.MatchString(word) && unit.MatchString(next)
			if drawn.MatchString(word) || isMeasured || index.MatchString(previous) {
				continue
			}
			for _, instead := range []string{word + "x", "x" + word, ""} {
				changed := slices.Clone(words)
				changed[j] = instead
				text := slices.Clone(lines)
				text[first+i] = strings.Join(changed, " ")
				if normal(strings.Join(text, "\n")) == whole {
					blind = append(blind, fmt.Sprintf("%q as %q in %q", word, instead, line))
					break
				}
			}
		}
	}
	return blind
}

// TestWhatIsNotComparedIsNamed holds that the comparison of rows sees each status, number, name and column, and that a normaliser that
// takes too much would be found.
func TestWhatIsNotComparedIsNamed(t *testing.T) {
	const answer = "ID = 0badcafe-0000-0000-0000-000000000000\nStatus = running\n\nTask Group  Desired  Placed\ng           3        2\n"
	if blind := seen(answer, map[string]bool{}); len(blind) > 0 {
		t.Errorf("it does not see %v", blind)
	}
	known := normalisers
	defer func() { normalisers = known }()
	for what, wanted := range map[string]string{`running|dead`: `"running"`, `[23]`: `"3"`, `Placed`: `"Placed"`} {
		// Whatever is taken is taken with what is put to it.
		normalisers = append(slices.Clone(known), normaliser{regexp.MustCompile(`x?(` + what + `|\b)x?`), ""})
		if blind := strings.Join(seen(answer, map[string]bool{}), "\n"); !strings.Contains(blind, wanted) {
			t.Errorf("with %s it is blind to %s", what, blind)
		}
	}
	const shaped = `{"Count": 3, "Names": ["a"]}`
	for _, other := range []string{`{"Count": "3", "Names": ["a"]}`, `{"Names": ["a"]}`, `{"Count": 3, "Names": [1]}`, `{"Count": 3, "Names": "a"}`} {
		if shape(other) == shape(shaped) {
			t.Errorf("%s is taken for %s", other, shaped)
		}
	}
}
