package nomad

import (
	"regexp"
	"strings"
	"testing"
)

// knowledge is what one run has drawn by lot, and its places.
type knowledge struct {
	dir, node, job string
	allocs         []string
}

// What else is never the same twice. What a job file sets, such as a timeout, stays.
var lots = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<id>"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "<container>"},
	{regexp.MustCompile(`(periodic|dispatch)-\d+(-[0-9a-f]{8})?`), "$1-<n>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?( UTC)?`), "<time>"},
	{regexp.MustCompile(`\b(198\.51\.100|127\.0\.0|172\.26\.\d+)\.\d+(:\d+)?\b`), "<address>"},
	{regexp.MustCompile(`\b(pid|PID)[ =:]+\d+`), "$1 <pid>"},
	// A delay before a restart has something added by lot.
	{regexp.MustCompile(`Task restarting in (\d+[hm])*\d+(\.\d+)?(ms|µs|s)`), "Task restarting in <duration>"},
}

// normal is a text without what is never the same twice: ids, times, addresses, process ids, delays, places.
func (k knowledge) normal(text string) string {
	pairs := []string{}
	for _, alloc := range k.allocs {
		pairs = append(pairs, alloc, "<id>", alloc[:8], "<id>")
	}
	pairs = append(pairs, k.node, "<id>", k.node[:8], "<id>", k.dir, "<agent>")
	text = strings.NewReplacer(pairs...).Replace(text)
	for _, one := range lots {
		text = one.what.ReplaceAllString(text, one.as)
	}
	return text
}

func TestN1NormalLeavesWhatAJobSays(t *testing.T) {
	k := knowledge{dir: "/tmp/nomad1/a2", node: "01234567-89ab-cdef-0123-456789abcdef", job: "j",
		allocs: []string{"fedcba98-7654-3210-fedc-ba9876543210"}}
	for _, row := range []struct{ text, want string }{
		{"alloc fedcba98-7654-3210-fedc-ba9876543210 on 01234567", "alloc <id> on <id>"},
		{"/tmp/nomad1/a2/data/alloc/fedcba98/web", "<agent>/data/alloc/<id>/web"},
		{"at 2026-11-25T13:00:01.5Z", "at <time>"},
		{"127.0.0.1:24810 and 198.51.100.1", "<address> and <address>"},
		{"pid=77 PID: 8", "pid <pid> PID <pid>"},
		{"Task restarting in 1.078s", "Task restarting in <duration>"},
		{"Task restarting in 9m53.330470811s", "Task restarting in <duration>"},
		{"j/dispatch-1764077000-0badcafe", "j/dispatch-<n>"},
		// A job's own.
		{"Sent interrupt. Waiting 2s before force killing", "Sent interrupt. Waiting 2s before force killing"},
		{"Exit Code: 137, Signal: 9", "Exit Code: 137, Signal: 9"},
		{"10.0.0.1", "10.0.0.1"},
		{"0000000000000000", "0000000000000000"},
	} {
		if got := k.normal(row.text); got != row.want {
			t.Errorf("%q is %q, not %q", row.text, got, row.want)
		}
	}
}
