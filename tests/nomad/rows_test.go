package nomad

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentbin.test/nomad/agent"
)

// TestRows gives the real command line the same commands for a real agent and for ours, one after the other, and
// compares what it prints and its status. (D5, P1)
func TestRows(t *testing.T) {
	needsItsRelease(t)
	compareReleases(t, rowFiles, rows)
}

// compareReleases compares the rows by the command line of the agent, and by those of further releases, which NOMAD_COMMANDS names
// with colons between them.
func compareReleases(t *testing.T, files map[string]string, rows []row) {
	t.Helper()
	own := setting(t, "NOMAD")
	compareRows(t, own, files, rows)
	for _, command := range filepath.SplitList(os.Getenv("NOMAD_COMMANDS")) {
		if command == own {
			continue
		}
		t.Run(releaseOf(t, command), func(t *testing.T) {
			has := commands(t, command)
			compareRows(t, command, files, slices.DeleteFunc(slices.Clone(rows), func(row row) bool {
				isNewer := !slices.ContainsFunc(has, row.isOf)
				if isNewer {
					t.Logf("it does not have: %s", row.command)
				}
				return isNewer
			}))
		})
	}
}

// compareRows asks a real agent and ours by a command line.
func compareRows(t *testing.T, command string, files map[string]string, rows []row) {
	t.Helper()
	theirs := onStock(t, agent.Config{})
	ours := beginOurs(t)
	sides := []*side{
		{name: "theirs", address: theirs.URL(), nomad: command, client: http.DefaultClient},
		{name: "ours", address: "unix://" + ours, nomad: command, client: &http.Client{Transport: &http.Transport{
			Dial: func(_, _ string) (net.Conn, error) { return net.Dial("unix", ours) },
		}}},
	}
	for _, side := range sides {
		side.dir = t.TempDir()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(side.dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer func() {
		for _, side := range sides {
			if err := side.stopAll(); err != nil {
				t.Errorf("%s: %v", side.name, err)
			}
		}
	}()
	again := map[string]bool{}
	for _, row := range rows {
		t.Run(strings.ReplaceAll(row.command, " ", "_"), func(t *testing.T) {
			var answers [2]answer
			var asking sync.WaitGroup
			for i, side := range sides {
				asking.Go(func() {
					var err error
					if row.wait != nil {
						err = agent.Eventually(side.name+": "+row.command, func() bool { return row.wait(side) })
					}
					if err == nil {
						answers[i], err = side.ask(row)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			asking.Wait()
			if row.status != answers[0].status {
				t.Errorf("the real agent's status is %d, and the row says %d:\n%s", answers[0].status, row.status, answers[0].raw)
			}
			same := answers[0].status == answers[1].status && answers[0].text == answers[1].text
			if row.json {
				// Ours may say more.
				has := strings.Split(answers[1].text, "\n")
				lacking := slices.DeleteFunc(strings.Split(answers[0].text, "\n"), func(line string) bool {
					// Where theirs has nothing, ours may have something.
					key, isNull := strings.CutSuffix(line, " <nil>")
					isThere := func(ours string) bool { return ours == line || isNull && strings.HasPrefix(ours, key+" ") }
					return lost.MatchString(line) || slices.ContainsFunc(has, isThere)
				})
				same = answers[0].status == answers[1].status && len(lacking) == 0
				answers[0].raw, answers[1].raw = strings.Join(lacking, "\n"), "(lacks that)"
			}
			switch {
			case same && row.but != "":
				t.Errorf("they are equal now: take %q out", row.but)
			case !same && row.but == "":
				t.Errorf("theirs, with status %d:\n%s\nours, with status %d:\n%s", answers[0].status, answers[0].raw,
					answers[1].status, answers[1].raw)
				t.Logf("first difference: %s", difference(answers[0].text, answers[1].text))
			}
			if !row.json {
				for _, blind := range seen(answers[1].whole, again) {
					t.Errorf("the comparison would not see %s", blind)
				}
			}
		})
	}
}

// A raw_exec task of a real agent has a message of its exit if its executor's answer to a wait was lost, as when it is shut
// down at that moment, and at no other time.
var lost = regexp.MustCompile(`\.TaskStates\.[^.]+\.Events\[\]\.Details\.exit_message string$`)

// A row is a command. In it, {alloc:JOB} and so on stand for what each agent calls the newest one of a job.
type row struct {
	command string
	status  int
	// wait says when it may be given.
	wait func(*side) bool
	// but says why the two differ, on purpose. A row that is equal must not have one.
	but string
	// lines in any order.
	unordered bool
	// json: only keys and types are compared, ours may have more.
	json bool
	// until: the command goes on until it has said this, and is interrupted then.
	until string
	// held: its input stays open. A real agent which has refused a session does not say why if the end of the input arrives just then.
	held bool
	// busy: the agent is asked something again and again meanwhile. One that has nothing to do may have nothing to log for minutes.
	busy bool
}

// isOf says whether it gives this command.
func (r row) isOf(command string) bool {
	return r.command == command || strings.HasPrefix(r.command, command+" ")
}

type side struct {
	name, address, nomad string
	// dir is where its commands are given.
	dir    string
	client *http.Client
}

type answer struct {
	status    int
	text, raw string
	// whole is raw as it was.
	whole string
}

func (s *side) get(path string, into any) error {
	base := s.address
	if strings.HasPrefix(base, "unix:") {
		base = "http://agent"
	}
	response, err := s.client.Get(base + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(into)
}

// stopAll ends all jobs, so that no task outlives the test: an agent that ends leaves them.
func (s *side) stopAll() error {
	var jobs []struct{ ID, Namespace string }
	if err := s.get("/v1/jobs?namespace=*", &jobs); err != nil {
		return err
	}
	for _, job := range jobs {
		command := s.command("job", "stop", "-detach", "-purge", "-yes", "-namespace", job.Namespace, job.ID)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command.Args, err, out)
		}
	}
	return agent.Eventually("all allocations have ended", func() bool {
		var allocs []struct{ ClientStatus string }
		err := s.get("/v1/allocations?namespace=*", &allocs)
		return err == nil && !slices.ContainsFunc(allocs, func(alloc struct{ ClientStatus string }) bool {
			return alloc.ClientStatus == "running" || alloc.ClientStatus == "pending"
		})
	})
}

// command is a call of the command line.
func (s *side) command(arguments ...string) *exec.Cmd {
	command := exec.Command(s.nomad, arguments...)
	command.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "NOMAD_") })
	command.Env = append(command.Env, "NOMAD_ADDR="+s.address, "NOMAD_CLI_NO_COLOR=1",
		// A link to a web interface, which ours does not have.
		"NOMAD_CLI_SHOW_HINTS=false")
	return command
}

var placeholder = regexp.MustCompile(`\{(\w+):?([\w-]*)\}`)

func (s *side) ask(row row) (answer, error) {
	var arguments []string
	var unknown error
	for _, argument := range strings.Fields(row.command) {
		argument = placeholder.ReplaceAllStringFunc(argument, func(what string) string {
			found := placeholder.FindStringSubmatch(what)
			id, err := s.newest(found[1], found[2])
			if err != nil {
				unknown = fmt.Errorf("%s: %s: %w", s.name, what, err)
			}
			return id
		})
		arguments = append(arguments, strings.ReplaceAll(argument, "␣", " "))
	}
	if unknown != nil {
		return answer{}, unknown
	}
	command := s.command(arguments...)
	command.Dir = s.dir
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if row.held {
		if _, err := command.StdinPipe(); err != nil {
			return answer{}, err
		}
	}
	if row.until != "" {
		said := &interrupter{text: row.until, at: &out, stop: func() { command.Process.Signal(os.Interrupt) }} //nolint:errcheck // it may have ended
		command.Stdout, command.Stderr = said, said
	}
	timer := time.AfterFunc(agent.Patience, func() { command.Process.Kill() }) //nolint:errcheck // it may be gone
	ended := make(chan struct{})
	if row.busy {
		go s.bother(ended)
	}
	err := command.Run()
	close(ended)
	timer.Stop()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return answer{}, err
	}
	text := out.String()
	a := answer{status: command.ProcessState.ExitCode(), raw: text, whole: text}
	if row.json {
		a.text = shape(text)
	} else {
		a.text = normal(text)
	}
	if row.unordered {
		lines := strings.Split(a.text, "\n")
		slices.Sort(lines)
		a.text = strings.Join(slices.Compact(lines), "\n")
	}
	return a, nil
}

// bother asks for what costs little, until the end.
func (s *side) bother(ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(100 * time.Millisecond):
			var leader string
			s.get("/v1/status/leader", &leader) //nolint:errcheck // it is asked again
		}
	}
}

// interrupter interrupts whoever writes a text. What it writes then does not count.
type interrupter struct {
	text string
	at   *bytes.Buffer
	stop func()
}

func (i *interrupter) Write(bytes []byte) (int, error) {
	if !strings.Contains(i.at.String(), i.text) {
		i.at.Write(bytes)
		if strings.Contains(i.at.String(), i.text) {
			i.stop()
		}
	}
	return len(bytes), nil
}

// newest is the id of the newest allocation, evaluation or deployment of a job, or of the node.
func (s *side) newest(kind, job string) (string, error) {
	path := map[string]string{
		"alloc":      "/v1/job/" + job + "/allocations?all=true",
		"eval":       "/v1/job/" + job + "/evaluations",
		"deployment": "/v1/job/" + job + "/deployments?all=true",
		"node":       "/v1/nodes",
		"child":      "/v1/jobs?prefix=" + job + "/",
		"policy":     "/v1/scaling/policies?job=" + job,
		"service":    "/v1/service/" + job,
		"snapshot":   "/v1/volumes/snapshot?plugin_id=" + job,
	}[kind]
	if kind == "snapshot" {
		var listed struct{ Snapshots []struct{ ID string } }
		if err := s.get(path, &listed); err != nil || len(listed.Snapshots) == 0 {
			return "", fmt.Errorf("%d snapshots: %w", len(listed.Snapshots), err)
		}
		return listed.Snapshots[0].ID, nil
	}
	var found []struct {
		ID          string
		CreateIndex uint64
	}
	if err := s.get(path, &found); err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", errors.New("there is none")
	}
	newest := found[0]
	for _, one := range found {
		if one.CreateIndex > newest.CreateIndex {
			newest = one
		}
	}
	return newest.ID, nil
}

type normaliser struct {
	what *regexp.Regexp
	as   string
}

var normalisers = []normaliser{
	{regexp.MustCompile(`\.Pids\.\d+`), ".Pids.<pid>"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<id>"},
	{regexp.MustCompile(`\b[0-9a-f]{8}\b`), "<id>"},
	// What a CSI driver calls its volumes.
	{regexp.MustCompile(`\b([0-9a-f]{32}|[0-9a-f]{12})\b`), "<id>"},
	{regexp.MustCompile(`(periodic|dispatch)-\d+`), "$1-<n>"},
	// What is used of it, which a real agent remembers of what has ended, or does not; and what may be used, which a job says.
	{regexp.MustCompile(`(?m)^(CPU +Memory +Disk.*\n)(?:\d+/)?(\d+) MHz +(?:[\d.]+ [KMG]?i?B/)?(\d+) MiB +(\d+) MiB`), "${1}${2}_MHz ${3}_MiB ${4}_MiB"},
	{regexp.MustCompile(`\d+(?:\.\d+)?(?: [KMG]?i?B)?/(\d+(?:\.\d+)?) (MHz|[KMG]iB)`), "<used>/${1}_$2"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?( UTC)?`), "<time>"},
	{regexp.MustCompile(`(\d+d)?(\d+h)?(\d+m)?\d+(\.\d+)?(ms|µs|s)\b|\b\d+[dhm](\d+[hms])?\b`), "<duration>"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+(:\d+)?\b`), "<address>"},
	{regexp.MustCompile(`\d+(\.\d+)? ?([KMG]iB|MB|B|MHz|GHz)\b`), "<size>"},
	{regexp.MustCompile(`\d+(\.\d+)?%`), "<percent>"},
	{regexp.MustCompile(`(?i)((?:modify|create|job)[ _]?index:? *(?:= *)?)\d+`), "$1<index>"},
	{regexp.MustCompile(`"(Create|Modify)Index": \d+`), `"${1}Index": <index>`},
	{regexp.MustCompile(`"(Create|Modify)Time": \d{19}`), `"${1}Time": <time>`},
	{regexp.MustCompile(`-check-index[ =]\d+`), "-check-index <index>"},
	{regexp.MustCompile(`server-side index \(\d+\)`), "server-side index (<index>)"},
	{regexp.MustCompile(`-{3,}`), "---"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`(?m) +$`), ""},
}

func normal(text string) string {
	for _, one := range normalisers {
		text = one.what.ReplaceAllString(text, one.as)
	}
	return strings.TrimSpace(monitor(text))
}

// monitor leaves out of what the command line's monitor prints what depends on when it looks: the order of what it finds
// in one look, states of allocations on the way, and those of a deployment before the last.
func monitor(text string) string {
	var lines, events []string
	last := -1
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, " <time>: Allocation ") && strings.Contains(line, " status changed: ") {
			continue
		}
		if strings.HasPrefix(line, " <time>: ") {
			events = append(events, line)
			continue
		}
		slices.Sort(events)
		lines = append(lines, slices.Compact(events)...)
		events = nil
		if strings.HasPrefix(line, "==> <time>: Monitoring deployment") {
			last = len(lines)
		}
		if line == "<time>" && last >= 0 {
			lines = lines[:last+1]
		}
		lines = append(lines, line)
	}
	slices.Sort(events)
	return strings.Join(append(lines, slices.Compact(events)...), "\n")
}

// shape is the keys and types of a JSON text.
func shape(text string) string {
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return "no JSON: " + normal(text)
	}
	var lines []string
	keys("", value, func(line string) { lines = append(lines, line) })
	slices.Sort(lines)
	return normal(strings.Join(slices.Compact(lines), "\n"))
}

func keys(path string, value any, say func(string)) {
	switch value := value.(type) {
	case map[string]any:
		say(path + " object")
		for key, inner := range value {
			keys(path+"."+key, inner, say)
		}
	case []any:
		say(path + " list")
		for _, inner := range value {
			keys(path+"[]", inner, say)
		}
	default:
		say(fmt.Sprintf("%s %T", path, value))
	}
}

func difference(one, other string) string {
	a, b := strings.Split(one, "\n"), strings.Split(other, "\n")
	for i := range max(len(a), len(b)) {
		left, right := "(nothing)", "(nothing)"
		if i < len(a) {
			left = a[i]
		}
		if i < len(b) {
			right = b[i]
		}
		if left != right {
			return fmt.Sprintf("%q and %q", left, right)
		}
	}
	return "only the status"
}

// beginOurs starts agentbin agent and returns its socket.
func beginOurs(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(world.dir, "o")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "agent.hcl")
	text := "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "sock")
	command := exec.Command(setting(t, "AGENTBIN"), "agent", "--data-dir", filepath.Join(dir, "data"), "--config", config,
		"--listen", "unix://"+socket)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		command.Wait()                          //nolint:errcheck // the status of SIGTERM
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("our agent's log:\n%s", text[max(0, len(text)-4000):])
		}
	})
	err = agent.Eventually("our agent listens", func() bool {
		connection, err := net.Dial("unix", socket)
		if err == nil {
			connection.Close()
		}
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return socket
}

// status waits until all allocations of a job that should be there have a status.
func status(job, wanted string, count int) func(*side) bool {
	return func(s *side) bool {
		var allocs []struct{ ClientStatus string }
		if s.get("/v1/job/"+job+"/allocations?all=true", &allocs) != nil {
			return false
		}
		n := 0
		for _, alloc := range allocs {
			if alloc.ClientStatus == wanted {
				n++
			}
		}
		return n == count
	}
}

// healthy waits until so many allocations of the deployment of a job's version are counted as healthy.
func healthy(job string, version, count int) func(*side) bool {
	return func(s *side) bool {
		var deployment struct {
			JobVersion int
			TaskGroups map[string]struct{ HealthyAllocs int }
		}
		if s.get("/v1/job/"+job+"/deployment", &deployment) != nil {
			return false
		}
		n := 0
		for _, group := range deployment.TaskGroups {
			n += group.HealthyAllocs
		}
		return deployment.JobVersion == version && n == count
	}
}

// dead waits until all jobs whose ids begin so have ended; there is one.
func dead(prefix string) func(*side) bool {
	return func(s *side) bool {
		var jobs []struct{ Status string }
		err := s.get("/v1/jobs?prefix="+prefix, &jobs)
		return err == nil && len(jobs) > 0 && !slices.ContainsFunc(jobs, func(j struct{ Status string }) bool { return j.Status != "dead" })
	}
}

// autopilot waits until the server's own look at itself, every few seconds, was in time: on a busy machine one may not be.
func autopilot(s *side) bool {
	var health struct{ Healthy bool }
	return s.get("/v1/operator/autopilot/health", &health) == nil && health.Healthy
}

// evaluated waits until an evaluation of a job has said what it lacks.
func evaluated(job string) func(*side) bool {
	return func(s *side) bool {
		var evals []struct{ Status string }
		err := s.get("/v1/job/"+job+"/evaluations", &evals)
		return err == nil && len(evals) == 2 && !slices.ContainsFunc(evals, func(e struct{ Status string }) bool { return e.Status == "pending" })
	}
}

func rowTask(script string) string {
	return fmt.Sprintf(`
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }`, script)
}

const quick = "\n    update {\n      min_healthy_time = \"0s\"\n      healthy_deadline = \"20s\"\n      progress_deadline = \"30s\"\n    }"

var steady = "echo out; echo err >&2; echo file > $NOMAD_TASK_DIR/f; trap : USR1; while :; do sleep 0.2; done"

var rowFiles = map[string]string{
	"hello.hcl":  "job \"hello\" {\n  group \"g\" {" + quick + rowTask(steady) + "\n  }\n}\n",
	"hello2.hcl": "job \"hello\" {\n  meta {\n    v = \"2\"\n  }\n  group \"g\" {\n    count = 2" + quick + rowTask(steady) + "\n  }\n}\n",
	"batch.hcl":  "job \"batch\" {\n  type = \"batch\"\n  group \"g\" {" + rowTask("echo done") + "\n  }\n}\n",
	"param.hcl": "job \"param\" {\n  type = \"batch\"\n  parameterized {\n    payload = \"optional\"\n    meta_required = [\"who\"]\n" +
		"  }\n  group \"g\" {" + rowTask("echo $NOMAD_META_who") + "\n  }\n}\n",
	"cron.hcl": "job \"cron\" {\n  type = \"batch\"\n  periodic {\n    crons = [\"0 0 1 1 *\"]\n  }\n  group \"g\" {" + rowTask("echo tick") +
		"\n  }\n}\n",
	"sys.hcl":     "job \"sys\" {\n  type = \"system\"\n  group \"g\" {" + rowTask(steady) + "\n  }\n}\n",
	"blocked.hcl": "job \"blocked\" {\n  constraint {\n    attribute = \"${attr.kernel.name}\"\n    value = \"plan9\"\n  }\n  group \"g\" {" + rowTask(steady) + "\n  }\n}\n",
	"huge.hcl":    "job \"huge\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n        command = \"/bin/true\"\n      }\n      resources {\n        memory = 99999999\n      }\n    }\n  }\n}\n",
	"fails.hcl":   "job \"fails\" {\n  type = \"batch\"\n  group \"g\" {\n    restart {\n      attempts = 0\n      mode = \"fail\"\n    }\n    reschedule {\n      attempts = 0\n      unlimited = false\n    }" + rowTask("exit 3") + "\n  }\n}\n",
	"bad.hcl":     "job \"bad\" {\n  type = \"nonsense\"\n  group \"g\" {" + rowTask("true") + "\n  }\n}\n",
	"canary.hcl":  "job \"canary\" {\n  group \"g\" {\n    update {\n      canary = 1\n      min_healthy_time = \"0s\"\n    }" + rowTask(steady) + "\n  }\n}\n",
	"canary2.hcl": "job \"canary\" {\n  group \"g\" {\n    update {\n      canary = 1\n      min_healthy_time = \"0s\"\n    }" + rowTask(steady+" ") + "\n  }\n}\n",
	"web.hcl":     "job \"web\" {\n  group \"g\" {\n    service {\n      name = \"web\"\n      provider = \"nomad\"\n      tags = [\"a\", \"b\"]\n    }" + quick + rowTask(steady) + "\n  }\n}\n",
	"act.hcl": "job \"act\" {\n  group \"g\" {\n    scaling {\n      min = 1\n      max = 3\n    }" + quick +
		strings.Replace(rowTask(steady), "resources", "action \"hi\" {\n        command = \"/bin/sh\"\n        args = [\"-c\", \"echo hi there; exit 3\"]\n      }\n      action \"well\" {\n        command = \"/bin/echo\"\n        args = [\"well\"]\n      }\n      resources", 1) + "\n  }\n}\n",
	"canary3.hcl": "job \"canary\" {\n  group \"g\" {\n    update {\n      canary = 1\n      min_healthy_time = \"0s\"\n    }" + rowTask(steady+"  ") + "\n  }\n}\n",
	"canary4.hcl": "job \"canary\" {\n  group \"g\" {\n    update {\n      canary = 1\n      min_healthy_time = \"0s\"\n    }" + rowTask(steady+"   ") + "\n  }\n}\n",
	"payload":     "from a file\n",
	"pool.hcl":    "node_pool \"extra\" {\n  description = \"another one\"\n}\n",
	"ns.hcl":      "name = \"other\"\ndescription = \"another one\"\n",
}

var rows = []row{
	{command: "status"},
	{command: "job status"},
	{command: "job status nosuch", status: 1},
	{command: "job validate hello.hcl"},
	{command: "job validate bad.hcl", status: 1, but: "the error message has other words"},
	{command: "job plan hello.hcl", status: 1},
	{command: "job run hello.hcl"},
	{command: "job run bad.hcl", status: 1, but: "the error message has other words"},
	{command: "job run -check-index 99999 hello.hcl", status: 1},
	{command: "job plan hello.hcl", wait: status("hello", "running", 1)},
	{command: "job plan hello2.hcl", status: 1},
	{command: "job status hello"},
	{command: "job status -verbose hello"},
	{command: "job status -evals hello"},
	{command: "job status -all-allocs hello"},
	{command: "status hello"},
	{command: "job allocs hello"},
	{command: "job allocs nosuch", status: 1},
	{command: "job deployments hello"},
	{command: "job deployments -latest hello"},
	{command: "job deployments nosuch", status: 1},
	{command: "job inspect hello", json: true},
	{command: "job inspect nosuch", status: 1},
	{command: "job inspect -hcl hello"},
	{command: "alloc status {alloc:hello}"},
	{command: "alloc status -short {alloc:hello}"},
	{command: "alloc status -verbose {alloc:hello}"},
	{command: "alloc status -json {alloc:hello}", json: true},
	{command: "alloc status 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "alloc status zz", status: 1, but: "an argument that is not an ID is not found"},
	{command: "alloc logs {alloc:hello}"},
	{command: "alloc logs -stderr {alloc:hello}"},
	{command: "alloc logs -tail -n 1 {alloc:hello} t"},
	{command: "alloc logs {alloc:hello} nosuch", status: 1},
	{command: "alloc logs -job hello"},
	{command: "alloc logs -job nosuch", status: 1},
	{command: "alloc logs -f -stdout {alloc:hello}", until: "out"},
	{command: "alloc logs -f -stderr -tail -n 1 {alloc:hello}", until: "err"},
	{command: "alloc logs -f -stdout {alloc:hello} nosuch", status: 1},
	{command: "alloc fs -f -tail -n 1 {alloc:hello} t/local/f", until: "file"},
	{command: "alloc fs {alloc:hello}"},
	{command: "alloc fs {alloc:hello} alloc/logs", but: "no FIFOs in alloc/logs"},
	{command: "alloc fs {alloc:hello} t/local/f"},
	{command: "alloc fs -stat {alloc:hello} t/local/f"},
	{command: "alloc fs -tail -n 1 {alloc:hello} t/local/f"},
	{command: "alloc fs {alloc:hello} nosuch", status: 1, but: "the path in the error message is the agent's own"},
	{command: "alloc fs {alloc:hello} t/secrets/x", status: 1, but: "secrets are refused whether they are there or not"},
	{command: "alloc exec {alloc:hello} /bin/echo hi"},
	{command: "alloc exec -task nosuch {alloc:hello} /bin/echo hi", status: 1},
	{command: "alloc exec {alloc:hello} /bin/sh -c exit␣3", status: 3},
	{command: "alloc exec {alloc:hello} /nosuch", status: 1, but: "a command that is not there ends with 127, as in a shell"},
	{command: "alloc signal -s SIGUSR1 {alloc:hello}"},
	{command: "alloc signal -s SIGNOSUCH {alloc:hello}", but: "an unknown signal is refused"},
	{command: "alloc signal -s SIGUSR1 {alloc:hello} nosuch", status: 1},
	{command: "alloc restart {alloc:hello}"},
	{command: "alloc restart {alloc:hello} nosuch", status: 1},
	{command: "alloc restart 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "alloc restart -all-tasks {alloc:hello}"},
	{command: "alloc checks {alloc:hello}"},
	{command: "alloc checks 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "alloc pause -status {alloc:hello} t", status: 1, but: "tasks have no time schedule"},
	{command: "alloc pause -state pause {alloc:hello} t", status: 1, but: "tasks have no time schedule"},
	{command: "job run -detach act.hcl"},
	{command: "job action -job act -group g -task t hi", status: 3, wait: healthy("act", 0, 1)},
	{command: "job action -job act -group g -task t well"},
	{command: "job action -job act -group g -task t nosuch", status: 1, held: true},
	{command: "job action -job nosuch -group g -task t hi", status: 1},
	{command: "scaling policy list -job act"},
	{command: "scaling policy info {policy:act}"},
	{command: "scaling policy info 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "job scale act g 9", status: 1},
	{command: "job run hello2.hcl"},
	{command: "job status hello", wait: status("hello", "running", 2)},
	{command: "job history hello"},
	{command: "job history -p hello"},
	{command: "job history -p -version 1 hello"},
	{command: "job history -version 9 hello", status: 1},
	{command: "job history nosuch", status: 1},
	{command: "job eval hello"},
	{command: "job eval nosuch", status: 1},
	{command: "job scale hello g 1"},
	{command: "job scale hello 3"},
	{command: "job scale hello nosuch 1", status: 1},
	{command: "job scale nosuch g 1", status: 1},
	{command: "job scaling-events hello"},
	{command: "job scaling-events -verbose hello"},
	{command: "job scaling-events nosuch", status: 1},
	{command: "scaling policy list"},
	{command: "job revert hello 0"},
	{command: "job revert hello 99", status: 1},
	{command: "job inspect -version 0 hello", json: true},
	{command: "job inspect -version 99 hello", status: 1},
	{command: "job allocs -json hello", json: true},
	{command: "job deployments -json hello", json: true},
	{command: "job start nosuch", status: 1},
	{command: "job start hello", status: 1},
	{command: "job stop -detach -purge act"},
	{command: "job revert nosuch 0", status: 1},
	{command: "job tag apply -name good -description fine hello"},
	{command: "job tag apply -name good nosuch", status: 1},
	{command: "job revert hello good", status: 1},
	{command: "job history -p -diff-tag good hello"},
	{command: "job tag unset -name good hello"},
	{command: "job tag unset -name good hello", status: 1},
	{command: "job promote hello", status: 1},
	{command: "job promote nosuch", status: 1},
	{command: "alloc stop {alloc:hello}"},
	{command: "alloc stop 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "job restart -yes hello"},
	{command: "job restart -yes nosuch", status: 1},
	{command: "job restart -yes -group nosuch hello"},
	{command: "job restart -yes -reschedule hello"},
	{command: "status {alloc:hello}"},
	{command: "status {deployment:hello}"},
	{command: "status nosuch", status: 1},
	{command: "deployment list"},
	{command: "deployment status {deployment:hello}"},
	{command: "deployment status 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "deployment fail {deployment:hello}", status: 1},
	{command: "deployment pause {deployment:hello}", status: 1},
	{command: "deployment resume {deployment:hello}", status: 1},
	{command: "deployment promote {deployment:hello}", status: 1},
	{command: "deployment unblock {deployment:hello}", status: 1, but: "there are no regions that could block it"},
	{command: "job run canary.hcl"},
	{command: "job run -detach canary2.hcl", wait: status("canary", "running", 1)},
	{command: "job status canary", wait: healthy("canary", 1, 1)},
	{command: "deployment status {deployment:canary}"},
	{command: "deployment pause {deployment:canary}"},
	{command: "deployment resume -detach {deployment:canary}"},
	{command: "deployment status {deployment:canary}"},
	{command: "job promote canary"},
	{command: "job run -detach canary3.hcl"},
	{command: "deployment promote {deployment:canary}", wait: healthy("canary", 2, 1)},
	{command: "job run -detach canary2.hcl"},
	{command: "deployment fail {deployment:canary}", status: 1, wait: healthy("canary", 3, 1)},
	{command: "job run -detach canary4.hcl"},
	{command: "deployment fail -detach {deployment:canary}", wait: healthy("canary", 4, 1)},
	{command: "deployment list -json", json: true},
	{command: "deployment list -filter Status==failed"},
	{command: "deployment list -filter Status===failed", status: 1, but: "the error message has other words"},
	{command: "job run batch.hcl"},
	{command: "job status batch", wait: status("batch", "complete", 1)},
	{command: "alloc status {alloc:batch}"},
	{command: "alloc exec {alloc:batch} /bin/true", status: 1, held: true},
	{command: "alloc restart {alloc:batch}", status: 1, but: "one message for any task that is not running"},
	{command: "alloc signal {alloc:batch}", status: 1, but: "one message for any task that is not running"},
	{command: "job run -detach fails.hcl"},
	{command: "job status fails", wait: status("fails", "failed", 1)},
	{command: "alloc status {alloc:fails}"},
	{command: "job run -detach blocked.hcl"},
	{command: "job status blocked", wait: evaluated("blocked")},
	{command: "job run -detach huge.hcl"},
	{command: "job status huge", wait: evaluated("huge")},
	{command: "job run sys.hcl"},
	{command: "job status sys", wait: status("sys", "running", 1)},
	{command: "job run param.hcl"},
	{command: "job status param"},
	{command: "job dispatch -meta who=me param"},
	{command: "job dispatch param", status: 1},
	{command: "job dispatch -meta who=me -meta what=x param", status: 1},
	{command: "job dispatch -meta who=me param payload"},
	{command: "job dispatch -meta who=me param nosuch", status: 1},
	{command: "job dispatch nosuch", status: 1},
	{command: "job dispatch hello", status: 1},
	{command: "job status {child:param}", wait: dead("param/")},
	{command: "job run cron.hcl"},
	{command: "job status cron"},
	{command: "job periodic force cron"},
	{command: "job periodic force nosuch", status: 1},
	{command: "job periodic force hello", status: 1},
	{command: "job status", wait: dead("cron/")},
	{command: "eval list", unordered: true},
	{command: "eval list -job blocked", unordered: true},
	{command: "eval list -status blocked", unordered: true},
	{command: "eval list -filter nosuch", status: 1, but: "the error message has other words"},
	{command: "eval delete 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "eval status -json {eval:batch}", json: true},
	{command: "eval status {eval:batch}"},
	{command: "eval status {eval:blocked}"},
	{command: "eval status 00000000-0000-0000-0000-000000000000", status: 1},
	{command: "job run web.hcl"},
	{command: "service list"},
	{command: "service info web"},
	{command: "service info -json web", json: true},
	{command: "service info nosuch", but: "a name without services is an error"},
	{command: "service list -filter nosuch", status: 1},
	{command: "service delete web nosuch", status: 1},
	{command: "service delete web {service:web}"},
	{command: "node status"},
	{command: "node status -allocs"},
	{command: "node status -self", but: "no mock_driver and no qemu"},
	{command: "node status nosuch", status: 1, but: "an argument that is not an ID is not found"},
	{command: "node status -json {node}", json: true, but: "no mock_driver, no qemu, no Connect; versions of CNI plugins are not looked at"},
	{command: "node eligibility -disable {node}"},
	{command: "node status {node}", but: "no mock_driver and no qemu"},
	{command: "node eligibility -enable {node}"},
	{command: "node eligibility -enable nosuch", status: 1, but: "an argument that is not an ID is not found"},
	{command: "node status -filter nosuch", status: 1, but: "the error message has other words"},
	{command: "node eligibility -self -enable"},
	{command: "node meta apply a"},
	{command: "node meta apply -node-id nosuch a=b", status: 1, but: "an argument that is not an ID is not found"},
	{command: "node meta read -node-id nosuch", status: 1, but: "an argument that is not an ID is not found"},
	{command: "node identity get {node}", but: "refused: the agent is the only server and the only node"},
	{command: "node identity get nosuch", status: 1, but: "refused: the agent is the only server and the only node"},
	{command: "node identity renew nosuch", status: 1, but: "refused: the agent is the only server and the only node"},
	{command: "node identity renew {node}", but: "refused: the agent is the only server and the only node"},
	{command: "node intro create", but: "refused: the agent is the only server and the only node"},
	{command: "node meta apply a=b"},
	{command: "node meta read -json", json: true, but: "there is no Connect, whose keys a real agent adds"},
	{command: "node meta apply -unset a"},
	{command: "node config -servers"},
	{command: "node config -update-servers 127.0.0.1:4647", but: "refused: the agent is the only server and the only node"},
	{command: "server members"},
	{command: "server members -json", json: true},
	{command: "server join 127.0.0.1", but: "refused: the agent is the only server and the only node"},
	{command: "server force-leave nosuch", but: "refused: the agent is the only server and the only node"},
	{command: "monitor -log-level nosuch", status: 1},
	{command: "monitor -node-id nosuch", status: 1, but: "an argument that is not an ID is not found"},
	{command: "monitor -log-level debug", until: "\n", busy: true, but: "the messages are the agent's own"},
	{command: "agent-info -json", json: true, but: "no configuration of Raft, Serf, Consul, Vault, RPC and telemetry"},
	{command: "agent-info", but: "there is no Raft and no Serf"},
	{command: "namespace list"},
	{command: "namespace apply ns.hcl"},
	{command: "namespace apply -description x third"},
	{command: "namespace status third"},
	{command: "namespace inspect third", json: true},
	{command: "namespace status nosuch", status: 1},
	{command: "namespace inspect nosuch", status: 1},
	{command: "namespace apply !", status: 1},
	{command: "namespace list -json", json: true},
	{command: "namespace list -filter nosuch", status: 1},
	{command: "namespace delete third"},
	{command: "namespace delete default", status: 1},
	{command: "namespace delete nosuch", status: 1},
	{command: "job run -namespace nosuch hello.hcl", status: 1},
	{command: "job status -namespace other"},
	{command: "var put nomad/jobs/x k=v"},
	{command: "var put -check-index 99999 nomad/jobs/x k=v", status: 1},
	{command: "var get nomad/jobs/x"},
	{command: "var get -item k nomad/jobs/x"},
	{command: "var get nosuch", status: 1},
	{command: "var put nomad/nosuch/x k=v", status: 1},
	{command: "var list"},
	{command: "var purge nomad/jobs/x"},
	{command: "var purge -check-index 99999 nomad/jobs/x", status: 1},
	{command: "var lock nomad/jobs/l /bin/echo locked"},
	{command: "var lock nomad/nosuch/l /bin/echo locked", status: 1},
	{command: "var list -filter nosuch", status: 1, but: "the error message has other words"},
	{command: "var list nosuch", status: 0},
	{command: "node pool list"},
	{command: "node pool info default"},
	{command: "node pool nodes default"},
	{command: "node pool info nosuch", status: 1},
	{command: "node pool nodes nosuch", status: 1},
	{command: "node pool jobs default"},
	{command: "node pool jobs nosuch", status: 1},
	{command: "node pool apply nosuch.hcl", status: 1},
	{command: "node pool apply pool.hcl", but: "refused: the only node is in the pool `default`"},
	{command: "node pool delete extra", but: "refused: the only node is in the pool `default`"},
	{command: "node pool delete nosuch", status: 1, but: "refused: the only node is in the pool `default`"},
	{command: "operator scheduler set-config -pause-eval-broker=false"},
	{command: "operator scheduler set-config -scheduler-algorithm nosuch", status: 1},
	{command: "operator scheduler get-config", but: "memory_max counts as it does in agentbin run, unless it is turned off"},
	{command: "operator raft list-peers"},
	{command: "operator autopilot get-config"},
	{command: "operator autopilot set-config -cleanup-dead-servers=true", but: "refused: the agent is the only server and the only node"},
	{command: "operator autopilot set-config -last-contact-threshold nosuch", status: 1},
	{command: "operator raft remove-peer -peer-id nosuch", status: 1, but: "refused: the agent is the only server and the only node"},
	{command: "operator raft transfer-leadership -peer-id nosuch", status: 1, but: "refused: the agent is the only server and the only node"},
	{command: "operator gossip keyring list", status: 1, but: "refused: the agent is the only server and the only node"},
	{command: "operator root keyring list", but: "refused: the key is a file in the data directory"},
	{command: "operator root keyring rotate -now", but: "refused: the key is a file in the data directory"},
	{command: "operator metrics -json", json: true, but: "no samples; the usage of tasks is in the statistics of each allocation"},
	{command: "operator snapshot save saved.snap"},
	{command: "operator snapshot save nosuch/saved.snap", status: 1},
	{command: "operator snapshot inspect saved.snap", but: "a snapshot holds the agent's database"},
	{command: "operator snapshot inspect payload", status: 1},
	{command: "operator snapshot restore payload", status: 1, but: "the error message has other words"},
	{command: "operator snapshot restore saved.snap"},
	{command: "operator debug -duration 1s -interval 1s -output .", but: "there is no Raft and no profile"},
	{command: "operator utilization", status: 1},
	{command: "operator autopilot health", but: "there is no Raft", wait: autopilot},
	{command: "license get", status: 1},
	{command: "quota list", status: 1},
	{command: "plugin status"},
	{command: "volume status"},
	{command: "operator api /v1/status/leader"},
	{command: "operator api /v1/nosuch"},
	{command: "operator api /v1/jobs", json: true},
	{command: "operator api /v1/allocations", json: true},
	{command: "operator api /v1/evaluations", json: true, but: "evaluations have no node and no node classes"},
	{command: "operator api /v1/deployments", json: true},
	{command: "operator api /v1/job/hello/summary", json: true},
	{command: "operator api /v1/job/hello/versions?diffs=true", json: true},
	{command: "operator api /v1/client/stats", json: true},
	{command: "operator api /v1/client/allocation/{alloc:sys}/stats", json: true},
	{command: "operator api /v1/agent/self", json: true, but: "no configuration of Raft, Serf, Consul, Vault, RPC and telemetry"},
	{command: "operator api /v1/metrics", json: true, but: "no samples; the usage of tasks is in the statistics of each allocation"},
	{command: "operator api /v1/services", json: true},
	{command: "operator api /v1/service/web", json: true},
	{command: "job stop sys"},
	{command: "job status sys", wait: status("sys", "complete", 1)},
	{command: "job start sys"},
	{command: "job stop nosuch", status: 1},
	{command: "job stop -purge batch"},
	{command: "job status batch", status: 1},
	{command: "job stop hello"},
	{command: "job status hello", wait: status("hello", "running", 0)},
	{command: "system reconcile summaries"},
	{command: "system gc"},
	{command: "node drain -enable -yes -deadline 10s {node}", unordered: true},
	{command: "node status {node}", but: "no mock_driver and no qemu"},
	{command: "node drain -disable -yes {node}"},
	{command: "node drain -disable -yes nosuch", status: 1, but: "an argument that is not an ID is not found"},
}
