package nomad

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentbin.test/nomad/agent"
	"github.com/hashicorp/nomad/api"
)

// facts are what the API says of one kind under one driver, each under its name, normalised.
type facts map[string]string

// one is a kind of jobs under one driver on one agent.
type one struct {
	*testing.T
	a      *agent.Agent
	api    *api.Client
	driver string
	// job is its name, and that of the children's parent.
	job string
	// jobs are those whose allocations are compared: the job, or its children.
	jobs  []string
	known knowledge
	facts facts
	// failure takes the first failure, where that is not a failure of the test.
	failure *string
}

func (o *one) Fatal(args ...any) {
	o.T.Helper()
	if o.failure != nil {
		*o.failure = fmt.Sprint(args...)
		runtime.Goexit()
	}
	o.T.Fatal(args...)
}

func (o *one) Fatalf(format string, args ...any) {
	o.T.Helper()
	o.Fatal(fmt.Sprintf(format, args...))
}

func (o *one) Errorf(format string, args ...any) {
	o.T.Helper()
	o.Error(fmt.Sprintf(format, args...))
}

func (o *one) Error(args ...any) {
	o.T.Helper()
	if o.failure != nil {
		o.Fatal(args...)
	}
	o.T.Error(args...)
}

// workers is how many kinds run at a time.
const workers = 12

// measuredAgain is how many kinds are measured once more under the agent's own drivers, because these failed at them or differ
// from ours. Ours are measured once, unless it was the agent that was behind.
const measuredAgain = 2

func everything(string) bool { return true }

// TestN1TrialEqualsStock runs every kind of jobs and actions (kinds_test.go) under the agent's own drivers and under ours,
// and compares what the API says, field by field. What may differ is a list (differences_test.go). The short form has two drivers
// for each kind, or NOMAD_TRIAL_DRIVERS, AGENTBIN_FULL=1 all. (N1, N2, N3, E1)
func TestN1TrialEqualsStock(t *testing.T) {
	needsRoot(t)
	if stock {
		t.Skip("SKIP: TestN1TrialEqualsStock: compares with ours")
	}
	jar(t)
	makeTrialFiles(t)
	engine := startEngine(t)
	config := trialConfig(t, engine)
	ofStock := config
	theirs := trialOn(t, "stock", func() *agent.Agent { return onStock(t, ofStock) }, everything)
	// The folders of these tests can be entered by everybody, so that tasks of every user pass, and no key of the agent's own
	// drivers is like this one.
	own := maps.Clone(config.PluginConfig)
	for _, driver := range drivers {
		own[driver] = "allow_writable_programs = true"
	}
	config.PluginConfig = own
	ours := trialOn(t, "ours", func() *agent.Agent { return other(t, config) }, everything)
	used, differences := map[int]bool{}, map[string][]string{}
	compare := func(name string, theirs facts) {
		driver, kind, _ := strings.Cut(name, ": ")
		if differences[name] = compared(kind, driver, theirs, ours[name], mayDifferHere, used); len(differences[name]) == 0 {
			delete(differences, name)
		}
	}
	maps.DeleteFunc(theirs, func(name string, _ facts) bool { return ours[name] == nil }) // it failed
	for name, theirs := range theirs {
		compare(name, theirs)
	}
	for again := 0; again < 3 && len(differences) > 0 && len(differences) <= measuredAgain; again++ {
		t.Logf("as Nomad's own drivers lose output at times, these are measured on them once more: %q", differences)
		isOne := func(name string) bool { return differences[name] != nil }
		for name, theirs := range trialOn(t, "stock again", func() *agent.Agent { return onStock(t, ofStock) }, isOne) {
			compare(name, theirs)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		t.Run("the same/"+name, func(t *testing.T) {
			for _, difference := range differences[name] {
				t.Error(difference)
			}
		})
	}
	for at, row := range mayDifferHere {
		if !used[at] {
			t.Logf("%s, %s, %q: no difference in this run", row.drivers, row.kind, row.field)
		}
	}
}

// trialConfig is what both agents are started with. What a task of exec sees of the machine is small, as stock copies it.
func trialConfig(t *testing.T, engine *agent.Engine) agent.Config {
	t.Helper()
	volumes, err := os.MkdirTemp(world.dir, "v")
	must(t, err)
	must(t, os.Chmod(volumes, 0o777))
	must(t, os.WriteFile(filepath.Join(volumes, "given"), []byte("from the host\n"), 0o644))
	// Everything here comes from one address.
	limits := "limits {\n http_max_conns_per_client = 0\n}\n"
	return agent.Config{Engine: engine.Endpoint(), Env: agentEnvironment, Blocks: limits, Client: fmt.Sprintf(`
  gc_max_allocs = 1000
  host_volume "data" {
    path = %q
  }
  host_volume "fixed" {
    path      = %q
    read_only = true
  }`, volumes, volumes) + smallRoot(t), PluginConfig: map[string]string{"docker": `
    volumes { enabled = true }
    gc { image = false }`}}
}

// trialOn runs the wanted kinds on one agent, several at a time, and returns their facts by "driver: kind".
func trialOn(t *testing.T, side string, start func() *agent.Agent, wanted func(string) bool) map[string]facts {
	t.Helper()
	began := time.Now()
	a := start()
	config := api.DefaultConfig()
	config.Address = a.URL()
	client, err := api.NewClient(config)
	must(t, err)
	_, _, err = client.Operator().SchedulerSetConfiguration(&api.SchedulerConfiguration{
		SchedulerAlgorithm: api.SchedulerAlgorithmBinpack, MemoryOversubscriptionEnabled: true}, nil)
	must(t, err)
	var nodes []struct{ ID string }
	must(t, a.Get("/v1/nodes", &nodes))

	some := 2
	if given := os.Getenv("NOMAD_TRIAL_DRIVERS"); given != "" {
		some, err = strconv.Atoi(given)
		must(t, err)
	}
	type work struct {
		kind   kind
		driver string
	}
	var all []work
	for at, kind := range trialKinds() {
		on := kind.on()
		// Some of its drivers, others for the next kind: the full form has all of them.
		if !full && len(on) > some {
			on = slices.Concat(on[at%len(on):], on[:at%len(on)])[:some]
		}
		for _, driver := range on {
			name := driver + ": " + kind.name
			if given := os.Getenv("NOMAD_KINDS"); wanted(name) && (given == "" || regexp.MustCompile(given).MatchString(name)) {
				all = append(all, work{kind, driver})
			}
		}
	}
	todo := make(chan work, len(all))
	for _, one := range all {
		todo <- one
	}
	close(todo)
	found := map[string]facts{}
	var failures atomic.Int32
	var lock sync.Mutex
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for next := range todo {
				name := next.driver + ": " + next.kind.name
				t.Run(side+"/"+name, func(t *testing.T) {
					measure := func(job string, failure *string) facts {
						o := &one{T: t, a: a, api: client, driver: next.driver, job: job, facts: facts{}, failure: failure}
						o.jobs = []string{job}
						o.known = knowledge{dir: a.Dir, node: nodes[0].ID, job: job}
						if failure == nil {
							o.run(next.kind)
							return o.facts
						}
						var running sync.WaitGroup
						running.Go(func() { o.run(next.kind) })
						running.Wait()
						for _, job := range append([]string{o.job}, o.jobs...) {
							client.Jobs().Deregister(job, true, nil) //nolint:errcheck // it may be gone
						}
						return o.facts
					}
					job, failure := slug(next.driver+" "+next.kind.name), ""
					measured := measure(job, &failure)
					for attempt := 2; failure != ""; attempt++ {
						isBehind := strings.Contains(failure, agentIsBehind)
						known := isBehind || strings.Contains(failure, serverIsBehind)
						// What the agent does not know, by an error of its own, says nothing about the drivers.
						if !isBehind && failures.Add(1) > measuredAgain || attempt > 4 || side == "ours" && !known {
							t.Fatal(failure)
						}
						t.Logf("measured again: %s", failure)
						failure = ""
						measured = measure(fmt.Sprintf("%s-%d", job, attempt), &failure)
					}
					if t.Failed() {
						return
					}
					lock.Lock()
					defer lock.Unlock()
					found[name] = measured
				})
			}
		})
	}
	working.Wait()
	t.Logf("%s: %d kinds of jobs and actions in %v", side, len(all), time.Since(began).Round(time.Second))
	// For who wants to read them.
	if dir := os.Getenv("NOMAD_FACTS"); dir != "" {
		text, err := json.MarshalIndent(found, "", " ")
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, side+".json"), text, 0o644))
	}
	nothingLeft(t, a, side)
	return found
}

// nothingLeft checks that all jobs together leave no process, mount or cgroup of a task, nor a helper, after their end.
func nothingLeft(t *testing.T, a *agent.Agent, side string) {
	t.Helper()
	nomad(t, a, "system", "gc")
	left := func() []string {
		var found []string
		for _, p := range agent.Processes() {
			if p.Is("executor") || p.Is("logmon") || p.Is("docker_logger") || strings.Contains(strings.Join(p.Cgroups, " "), "nomad/share/") {
				found = append(found, fmt.Sprintf("process %d %q", p.Pid, p.Command))
			}
		}
		found = append(found, agent.Mounts(filepath.Join(a.Dir, "data", "alloc")+"/")...)
		entries, _ := os.ReadDir(filepath.Join(a.Dir, "data", "alloc"))
		for _, entry := range entries {
			found = append(found, entry.Name())
		}
		return found
	}
	if err := agent.Eventually("nothing is left", func() bool { return len(left()) == 0 }); err != nil {
		t.Errorf("%s: left after the end of all jobs:\n%s", side, strings.Join(left(), "\n"))
	}
}

// slug is a kind's name as a job's.
func slug(name string) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9_]+`).ReplaceAllString(strings.ToLower(name), "-"), "-")
}

// run has a kind do all it does, and notes what the API says then.
func (o *one) run(k kind) {
	if k.before != nil {
		k.before(o)
	}
	o.submit(k.text(o))
	switch {
	case k.act != nil:
		k.act(o)
	default:
		o.ended(1)
	}
	// What runs on is stopped, which is part of the comparison.
	for _, job := range o.jobs {
		_, _, err := o.api.Jobs().Deregister(job, false, nil)
		o.must(err)
	}
	ended := func() bool {
		o.stopAgain()
		for _, alloc := range o.allocs() {
			if alloc.ClientStatus == "running" || alloc.ClientStatus == "pending" {
				return false
			}
			for _, state := range alloc.TaskStates {
				if state.State == "running" {
					return false
				}
			}
		}
		return true
	}
	if err := agent.Eventually(o.driver+": all have ended", ended); err != nil {
		o.Fatalf("%v%s\n%s", err, o.undecided(), o.described())
	}
	o.noteAllocs()
	for _, job := range append([]string{o.job}, o.jobs...) {
		_, _, err := o.api.Jobs().Deregister(job, true, nil)
		o.must(err)
	}
}

// stopAgain asks once more for stops that came together with the end of a deployment: the server then writes down that the version
// of the deployment is stable, and that version runs.
func (o *one) stopAgain() {
	o.Helper()
	for _, name := range o.jobs {
		job, _, err := o.api.Jobs().Info(name, nil)
		if err != nil || job.Stop == nil || *job.Stop {
			continue
		}
		_, _, err = o.api.Jobs().Deregister(name, false, nil)
		o.must(err)
	}
}

// serverIsBehind is what failures say of a job whose stop the agent's server has not decided on. No driver has a part in that.
const serverIsBehind = "the agent's server has not decided on the stop of"

// undecided is the evaluations of a stopped job, if the one that stops its allocations is not complete.
func (o *one) undecided() string {
	o.Helper()
	var text strings.Builder
	for _, job := range o.jobs {
		evals, _, err := o.api.Jobs().Evaluations(job, nil)
		o.must(err)
		waits := func(eval *api.Evaluation) bool {
			return eval.TriggeredBy == "job-deregister" && eval.Status == "pending"
		}
		if slices.ContainsFunc(evals, waits) {
			fmt.Fprintf(&text, "\n%s %s", serverIsBehind, job)
		}
		for _, eval := range evals {
			fmt.Fprintf(&text, "\nevaluation %.8s of %s by %s: %s %s", eval.ID, job, eval.TriggeredBy, eval.Status, eval.StatusDescription)
		}
	}
	return text.String()
}

// submit registers a job file.
func (o *one) submit(text string) {
	o.Helper()
	job, err := o.api.Jobs().ParseHCL(text, true)
	if err != nil {
		o.Fatalf("%v\n%s", err, text)
	}
	_, _, err = o.api.Jobs().Register(job, nil)
	o.must(err)
}

func (o *one) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatalf("%v\n%s", err, o.described())
	}
}

// until waits for a condition, and fails with what there is of the job.
func (o *one) until(what string, ok func() bool) {
	o.Helper()
	o.must(agent.Eventually(o.driver+": "+what, ok))
}

// runsAgain waits until the server knows that a task runs after its last restart. What the task writes can be read before that, and
// a stop that comes in between changes the order of events.
func (o *one) runsAgain(task string) {
	o.Helper()
	o.until(task+" runs again, as the server knows", func() bool {
		state := o.allocs()[0].TaskStates[task]
		return state != nil && state.State == "running" && !state.LastRestart.IsZero() && state.StartedAt.After(state.LastRestart)
	})
}

// told waits until the server knows of an event of a task.
func (o *one) told(task, event string) {
	o.Helper()
	o.until(fmt.Sprintf("%s has the event %s", task, event), func() bool {
		state := o.allocs()[0].TaskStates[task]
		return state != nil && slices.ContainsFunc(state.Events, func(one *api.TaskEvent) bool { return one.Type == event })
	})
}

// allocs are the job's allocations, or those of its children, in the order of their names and creation.
func (o *one) allocs() []*api.Allocation {
	o.Helper()
	var all []*api.Allocation
	for _, job := range o.jobs {
		stubs, _, err := o.api.Jobs().Allocations(job, true, nil)
		if err != nil {
			o.Fatal(err)
		}
		for _, stub := range stubs {
			alloc, _, err := o.api.Allocations().Info(stub.ID, nil)
			if err != nil {
				o.Fatal(err)
			}
			all = append(all, alloc)
		}
	}
	slices.SortFunc(all, func(a, b *api.Allocation) int {
		if a.Name != b.Name {
			return strings.Compare(a.Name, b.Name)
		}
		return int(a.CreateIndex) - int(b.CreateIndex)
	})
	return all
}

func (o *one) described() string {
	var all []agent.Alloc
	for _, job := range o.jobs {
		found, _ := o.a.Allocs(job)
		all = append(all, found...)
	}
	return agent.Describe(all)
}

// ended waits for so many allocations that have come to their end by themselves.
func (o *one) ended(count int) {
	o.Helper()
	o.until(fmt.Sprintf("%d have ended", count), func() bool {
		return o.count("complete", "failed") == count
	})
}

// running waits for so many that run.
func (o *one) running(count int) []*api.Allocation {
	o.Helper()
	o.until(fmt.Sprintf("%d run", count), func() bool { return o.count("running") == count })
	return slices.DeleteFunc(o.allocs(), func(alloc *api.Allocation) bool { return alloc.ClientStatus != "running" })
}

func (o *one) count(statuses ...string) int {
	count := 0
	for _, job := range o.jobs {
		stubs, _, err := o.api.Jobs().Allocations(job, true, nil)
		if err != nil {
			o.Fatal(err)
		}
		for _, stub := range stubs {
			if slices.Contains(statuses, stub.ClientStatus) {
				count++
			}
		}
	}
	return count
}

// started waits until a service's only allocation runs and has said that it is ready.
func (o *one) started() *api.Allocation {
	o.Helper()
	alloc := o.running(1)[0]
	o.logged(alloc, "web", `^ready$`, 1)
	return alloc
}

// logged waits until so many lines of a task's stdout match.
func (o *one) logged(alloc *api.Allocation, task, pattern string, count int) {
	o.Helper()
	wanted, text := regexp.MustCompile("(?m)"+pattern), ""
	var unread error
	var behind time.Time
	err := agent.Eventually(fmt.Sprintf("%s: %s: %d times %s", o.driver, task, count, pattern), func() bool {
		text, unread = o.log(alloc, task, "stdout")
		switch {
		case unread == nil || !strings.Contains(unread.Error(), agentIsBehind):
			behind = time.Time{}
		case behind.IsZero():
			behind = time.Now()
		case time.Since(behind) > 20*time.Second:
			return true
		}
		return len(wanted.FindAllString(text, -1)) >= count
	})
	if err == nil && !behind.IsZero() {
		err = fmt.Errorf("the agent does not know that %s runs", task)
	}
	if err != nil {
		o.Fatalf("%v; the log has (%v):\n%s\n%s%s", err, unread, text, o.described(), processesOf(alloc))
	}
}

// agentIsBehind is what an agent says of a task that it has not seen starting. An agent that has just told that the task has started,
// and says so all the same, answers so for as long as the task runs, whoever started it: AllocState in
// client/allocrunner/alloc_runner.go, which it calls every second for its metrics, writes back the states that it has read before.
const agentIsBehind = "not started yet. No logs available"

// processesOf describes the processes whose command or cgroups name an allocation, for who has to find out why a test failed.
func processesOf(alloc *api.Allocation) string {
	var text strings.Builder
	for _, p := range agent.Processes() {
		if strings.Contains(strings.Join(slices.Concat(p.Command, p.Cgroups), " "), alloc.ID) {
			fmt.Fprintln(&text, p)
		}
	}
	return text.String()
}

// log is what a task has written.
func (o *one) log(alloc *api.Allocation, task, stream string) (string, error) {
	cancel := make(chan struct{})
	defer close(cancel)
	frames, errs := o.api.AllocFS().Logs(alloc, false, task, stream, "start", 0, cancel, nil)
	var text strings.Builder
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				return text.String(), nil
			}
			text.Write(frame.Data)
		case err := <-errs:
			if err == io.EOF {
				return text.String(), nil
			}
			return text.String(), err
		}
	}
}

// note keeps a fact. A long text is one by its length and digest.
func (o *one) note(field, value string) {
	if value = o.known.normal(value); len(value) > 4000 {
		value = fmt.Sprintf("%d bytes that start with %q, SHA-256 %x", len(value), value[:20], sha256.Sum256([]byte(value)))
	}
	o.facts[field] = value
}

func (o *one) noteError(field string, err error) {
	if err == nil {
		o.note(field, "none")
	} else {
		o.note(field, err.Error())
	}
}

// noteAllocs keeps what the API tells of each allocation and task: states, events, logs.
func (o *one) noteAllocs() {
	allocs := o.allocs()
	for _, alloc := range allocs {
		o.known.allocs = append(o.known.allocs, alloc.ID)
	}
	o.note("allocations", fmt.Sprint(len(allocs)))
	for n, alloc := range allocs {
		prefix := ""
		if len(allocs) > 1 {
			prefix = fmt.Sprintf("allocation %d, ", n)
		}
		o.note(prefix+"client status", alloc.ClientStatus)
		o.note(prefix+"client description", alloc.ClientDescription)
		o.note(prefix+"desired status", alloc.DesiredStatus)
		o.note(prefix+"desired description", alloc.DesiredDescription)
		for name, state := range alloc.TaskStates {
			o.noteTask(prefix+name+": ", alloc, name, state)
		}
	}
}

func (o *one) noteTask(prefix string, alloc *api.Allocation, name string, state *api.TaskState) {
	o.note(prefix+"state", state.State)
	o.note(prefix+"failed", fmt.Sprint(state.Failed))
	o.note(prefix+"restarts", fmt.Sprint(state.Restarts))
	o.note(prefix+"started", fmt.Sprint(!state.StartedAt.IsZero()))
	o.note(prefix+"finished", fmt.Sprint(!state.FinishedAt.IsZero()))
	o.note(prefix+"restarted", fmt.Sprint(!state.LastRestart.IsZero()))
	var order, said []string
	seen := map[string]int{}
	for _, event := range state.Events {
		// A driver's own events come when they come.
		if event.Type == "Driver" {
			said = append(said, event.DisplayMessage)
			continue
		}
		// So does the server's judgement of a deployment.
		if event.Type == "Alloc Unhealthy" {
			continue
		}
		order = append(order, event.Type)
		seen[event.Type]++
		field := prefix + event.Type
		if n := seen[event.Type]; n > 1 {
			field = fmt.Sprintf("%s %d", field, n)
		}
		o.note(field, event.DisplayMessage)
		for key, value := range event.Details {
			if key == "start_delay" {
				value = "<duration>" // it has something added by lot
			}
			if value != event.DisplayMessage {
				o.note(field+", "+key, value)
			}
		}
	}
	slices.Sort(said)
	o.note(prefix+"events", strings.Join(order, ", "))
	o.note(prefix+"driver's events", strings.Join(said, "\n"))
	for _, stream := range []string{"stdout", "stderr"} {
		text, err := o.log(alloc, name, stream)
		// That there is no log can come too late to be answered: an answer with nothing is asked for again, and a log with nothing
		// in it answers so each time.
		for again := 0; again < 3 && text == "" && err == nil; again++ {
			text, err = o.log(alloc, name, stream)
		}
		if err != nil {
			text = "error: " + err.Error()
		}
		// `key: value` lines are facts of their own.
		rest := ""
		for line := range strings.Lines(text) {
			if key, value, ok := strings.Cut(line, ": "); ok && strings.HasPrefix(key, "fact ") {
				o.note(prefix+strings.TrimPrefix(key, "fact "), strings.TrimSuffix(value, "\n"))
			} else {
				rest += line
			}
		}
		o.note(prefix+stream, rest)
	}
}

// exec runs a command in a task and notes its status and outputs.
func (o *one) exec(field string, alloc *api.Allocation, tty bool, input string, command ...string) {
	o.Helper()
	var stdout, stderr bytes.Buffer
	within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var stdin io.Reader = strings.NewReader(input)
	if tty {
		// Stock hangs up when the input ends.
		open, writer := io.Pipe()
		defer writer.Close()
		stdin = open
	}
	status, err := o.api.Allocations().Exec(within, alloc, "web", tty, command, stdin, &stdout, &stderr, nil, nil)
	o.note(field+": status", fmt.Sprint(status))
	o.noteError(field+": error", err)
	o.note(field+": stdout", stdout.String())
	o.note(field+": stderr", stderr.String())
}

// makeTrialFiles makes what the kinds' artifact blocks fetch.
func makeTrialFiles(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "tree", "below"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "tree", "below", "file"), []byte("from an archive\n"), 0o640))
	must(t, os.WriteFile(filepath.Join(dir, "tree", "program"), []byte("#!/bin/sh\necho \"fetched program: $1\"\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(files, "plain.txt"), []byte("a plain file\n"), 0o644))
	out, err := exec.Command("tar", "-C", dir, "-czf", filepath.Join(files, "tree.tar.gz"), "tree").CombinedOutput()
	if err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
}

// smallRoot is the chroot_env of a client whose exec and java tasks get what the tests need. Stock links or copies all of it for
// each task: it lies where links are possible, and the fewer the better. The machine's own programs would be gigabytes.
func smallRoot(t *testing.T) string {
	t.Helper()
	needsRoot(t)
	root, err := os.MkdirTemp(world.dir, "r")
	must(t, err)
	must(t, os.Chmod(root, 0o755))
	java, err := filepath.EvalSymlinks("/usr/bin/java")
	must(t, err)
	home := filepath.Dir(filepath.Dir(java))
	script := exec.Command("sh", "-ec", `
mkdir -p bin usr-bin lib lib64
for name in sh sleep cat ls tr head env grep id nproc sort stat readlink mkdir touch test wc stty busybox echo cut sed true; do
  cp -L $(PATH=/usr/bin:/bin which $name) bin/$name
  ln bin/$name usr-bin/$name
done
ln -s $1 usr-bin/java
cp -a $2 java
for file in bin/* $1 $(find $2/lib -name '*.so'); do ldd $file 2>/dev/null || true; done |
  grep -o '/[^ ]*lib/[^ :]*\.so[^ :]*' | grep -v "^$2" | sort -u | while read -r library; do cp -L $library lib/; done
cp -L /lib64/ld-linux-x86-64.so.2 lib64/`, "sh", java, home)
	script.Dir = root
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("the root of the tasks: %v: %s", err, out)
	}
	lines := "\"/etc\" = \"/etc\"\n"
	for from, to := range map[string]string{"bin": "/bin", "usr-bin": "/usr/bin", "lib": "/lib/x86_64-linux-gnu", "lib64": "/lib64", "java": home} {
		lines += fmt.Sprintf("    %q = %q\n", filepath.Join(root, from), to)
	}
	return "\n  chroot_env = {\n    " + lines + "  }"
}
