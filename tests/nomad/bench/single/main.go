// Command single measures agentbin agent beside `nomad agent -dev`, one after the other in the same run.
// scripts/bench agent starts it and tells what is measured how.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agentbin.test/nomad/agent"
)

// figures are what one agent was measured at.
type figures struct {
	// FirstAnswer is from the start of the process to the first answer to any request, Ready to that a raw_exec job may be placed;
	// both are the median of several starts.
	FirstAnswer float64 `json:"first_answer_ms"`
	Ready       float64 `json:"ready_ms"`
	// Start is from the request that registers a job to the answer that its allocation runs.
	Start    float64 `json:"register_to_running_p50_ms"`
	StartP95 float64 `json:"register_to_running_p95_ms"`
	// Drift is the growth of memory and descriptors from the first tenth of the cycles to their end, at rest both times.
	RSSDrift float64 `json:"rss_drift_percent"`
	FDDrift  float64 `json:"descriptor_drift_percent"`
	RSSEmpty int     `json:"rss_empty_kib"`
	RSS      int     `json:"rss_kib"`
	// Helpers is the PSS of all other processes of its own beside the tasks.
	Helpers int     `json:"helpers_pss_kib"`
	Wakeups float64 `json:"wakeups_per_s"`
}

type report struct {
	Nomad       string  `json:"nomad"`
	Tasks       int     `json:"tasks"`
	Runs        int     `json:"runs"`
	Cycles      int     `json:"cycles"`
	StockCycles int     `json:"stock_cycles"`
	Ours        figures `json:"ours"`
	Stock       figures `json:"stock"`
}

// row is one line of what is told: ours, theirs, and what ours may be at most.
type row struct {
	what    string
	of      func(figures) float64
	budget  float64
	decimal int
}

var rows = []row{
	{"start to first answer, ms", func(f figures) float64 { return f.FirstAnswer }, 100, 0},
	{"start to ready for a job, ms", func(f figures) float64 { return f.Ready }, 0, 0},
	{"register to running, p50, ms", func(f figures) float64 { return f.Start }, 30, 1},
	{"register to running, p95, ms", func(f figures) float64 { return f.StartP95 }, 0, 1},
	{"RSS, nothing runs, MiB", func(f figures) float64 { return float64(f.RSSEmpty) / 1024 }, 0, 1},
	{"RSS, idle beside the tasks, MiB", func(f figures) float64 { return float64(f.RSS) / 1024 }, 15, 1},
	{"helpers of the tasks, PSS, MiB", func(f figures) float64 { return float64(f.Helpers) / 1024 }, 0, 1},
	{"wake-ups per second, idle", func(f figures) float64 { return f.Wakeups }, 1, 2},
	{"drift of RSS over the cycles, %", func(f figures) float64 { return f.RSSDrift }, 2, 1},
	{"drift of descriptors, %", func(f figures) float64 { return f.FDDrift }, 2, 1},
}

// untilIdle is after the last start of a task: what it has led to is over by then, on both sides.
const untilIdle = time.Minute

// aRest is more than the 30 s between two looks of ours at the machine: each maps pages of the program which are given back soon after.
const aRest = 35 * time.Second

// rests is how many rests memory is read at for its drift, a hundredth of the cycles apart: where free memory lies within pages changes
// with each cycle, and a single rest says no more than where that was.
const rests = 4

// maxStockCycles is how many cycles Nomad's agent does at most: each takes it more than a second.
const maxStockCycles = 500

type options struct {
	json                bool
	runs, tasks, cycles int
}

func main() {
	agent.Enter()
	var o options
	flag.BoolVar(&o.json, "json", false, "")
	flag.IntVar(&o.runs, "runs", 30, "")
	flag.IntVar(&o.tasks, "tasks", 100, "")
	flag.IntVar(&o.cycles, "cycles", 200, "")
	flag.Parse()
	if err := measure(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(o options) error {
	nomad, ours := os.Getenv("NOMAD"), os.Getenv("AGENTBIN")
	if !agent.Inside() {
		return errors.New("needs root")
	}
	if nomad == "" || ours == "" {
		return errors.New("NOMAD and AGENTBIN are not set; run scripts/bench agent")
	}
	if o.runs < 1 || o.tasks < 1 || o.cycles < 10 {
		return errors.New("at least 1 run, 1 task and 10 cycles")
	}
	version, err := exec.Command(nomad, "version").Output()
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(version), "\n")
	r := report{Nomad: first, Tasks: o.tasks, Runs: o.runs, Cycles: o.cycles, StockCycles: min(o.cycles, maxStockCycles)}
	for _, side := range []struct {
		name   string
		begin  func(dir string) (*exec.Cmd, *http.Client)
		cycles int
		into   *figures
	}{
		{"ours", func(dir string) (*exec.Cmd, *http.Client) { return own(ours, dir) }, r.Cycles, &r.Ours},
		{"stock", func(dir string) (*exec.Cmd, *http.Client) { return stock(nomad, dir) }, r.StockCycles, &r.Stock},
	} {
		o.cycles = side.cycles
		if err := one(o, side.begin, side.into); err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
	}
	if o.json {
		text, err := json.MarshalIndent(map[string]any{"agent": r}, "", "  ")
		if err == nil {
			fmt.Println(string(text))
		}
		return err
	}
	r.print()
	return nil
}

func (r report) print() {
	fmt.Printf("agent: ours beside `nomad agent -dev` (%s); %d tasks, %d runs, %d cycles (nomad: %d)\n",
		r.Nomad, r.Tasks, r.Runs, r.Cycles, r.StockCycles)
	fmt.Printf("  %-34s %10s %10s %8s\n", "", "ours", "nomad", "ratio")
	for _, row := range rows {
		ours, stock, ratio, budget := row.of(r.Ours), row.of(r.Stock), "", ""
		if stock > 0 {
			ratio = fmt.Sprintf("%.3f", ours/stock)
		}
		if row.budget > 0 {
			budget = fmt.Sprintf("  at most %g, reached", row.budget)
			if ours > row.budget {
				budget = fmt.Sprintf("  at most %g, missed", row.budget)
			}
		}
		fmt.Printf("  %-34s %10.*f %10.*f %8s%s\n", row.what, row.decimal, ours, row.decimal, stock, ratio, budget)
	}
}

const rawExec = "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n"

// own is our agent, on a unix socket.
func own(program, dir string) (*exec.Cmd, *http.Client) {
	config, socket := filepath.Join(dir, "agent.hcl"), filepath.Join(dir, "a.sock")
	must(os.WriteFile(config, []byte(rawExec), 0o600))
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	command := exec.Command(program, "agent", "--data-dir", filepath.Join(dir, "data"), "--config", config, "--listen", "unix://"+socket)
	return command, client(dial)
}

// stock is Nomad's, with what looks for clouds left out; it would wait for them.
func stock(program, dir string) (*exec.Cmd, *http.Client) {
	config := filepath.Join(dir, "agent.hcl")
	text := "disable_update_check = true\nclient {\n  network_interface = \"eth0\"\n  options = {\n" +
		"    \"fingerprint.denylist\" = \"env_aws,env_gce,env_azure,env_digitalocean,cloud,consul,vault\"\n  }\n}\n" + rawExec
	must(os.WriteFile(config, []byte(text), 0o600))
	command := exec.Command(program, "agent", "-dev", "-data-dir", filepath.Join(dir, "data"), "-config", config)
	command.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "NOMAD_") })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:4646")
	}
	return command, client(dial)
}

func client(dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
	return &http.Client{Timeout: agent.Patience, Transport: &http.Transport{DialContext: dial}}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// side is an agent that is being measured.
type side struct {
	process *os.Process
	http    *http.Client
}

// starts is how often an agent is started, each time with a new data directory; all is measured at the last one.
const starts = 5

func one(o options, begin func(string) (*exec.Cmd, *http.Client), f *figures) error {
	var first, ready []float64
	for n := range starts {
		err := with(begin, func(s side, started time.Time) error {
			answered, isReady, err := s.start(started)
			if err != nil {
				return err
			}
			first, ready = append(first, answered), append(ready, isReady)
			if n < starts-1 {
				return nil
			}
			return s.measure(o, f)
		})
		if err != nil {
			return err
		}
	}
	f.FirstAnswer, f.Ready = median(first), median(ready)
	return nil
}

func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}

// with starts an agent and ends it after that.
func with(begin func(string) (*exec.Cmd, *http.Client), do func(side, time.Time) error) error {
	// Short, because sockets lie below it.
	dir, err := os.MkdirTemp("", "sa")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	command, http := begin(dir)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	started := time.Now()
	if err := command.Start(); err != nil {
		return err
	}
	defer func() {
		command.Process.Kill() //nolint:errcheck // it may be gone
		command.Wait()         //nolint:errcheck // it was killed
		endAll()
	}()
	s := side{command.Process, http}
	if err := do(s, started); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w; its log ends with:\n%s", err, text[max(0, len(text)-4000):])
	}
	return nil
}

// start says after which times it answered, and was ready for a job.
func (s side) start(started time.Time) (answered, ready float64, err error) {
	if err := soon(func() bool { return s.get("/v1/status/leader", new(any)) == nil }); err != nil {
		return 0, 0, fmt.Errorf("no answer: %w", err)
	}
	answered = ms(time.Since(started))
	if err := soon(s.isReady); err != nil {
		return 0, 0, fmt.Errorf("the node is not ready: %w", err)
	}
	return answered, ms(time.Since(started)), nil
}

func (s side) measure(o options, f *figures) error {
	f.RSSEmpty = settled(s.rss)

	var times []float64
	for n := range o.runs {
		took, err := s.cycle(fmt.Sprintf("run-%d", n))
		if err != nil {
			return err
		}
		times = append(times, ms(took))
	}
	f.Start = median(times)
	f.StartP95 = times[len(times)*95/100]

	var rss, descriptors [2]int
	for n := range o.cycles {
		if _, err := s.cycle(fmt.Sprintf("cycle-%d", n)); err != nil {
			return err
		}
		for i, end := range []int{o.cycles / 10, o.cycles} {
			left, apart := end-1-n, max(o.cycles/100, 1)
			if left < 0 || left%apart != 0 || left/apart >= rests {
				continue
			}
			if now := atRest(s.rss); rss[i] == 0 || now < rss[i] {
				rss[i] = now
			}
			descriptors[i] = settled(s.descriptors)
		}
	}
	f.RSSDrift = growth(rss)
	f.FDDrift = growth(descriptors)

	if err := s.put("/v1/jobs", job("many", o.tasks)); err != nil {
		return err
	}
	if err := s.running("many", o.tasks); err != nil {
		return err
	}
	time.Sleep(untilIdle)
	f.RSS = settled(s.rss)
	f.Helpers = s.helpers()
	const watched = 20 * time.Second
	before := s.switches()
	time.Sleep(watched)
	f.Wakeups = float64(woken(before, s.switches())) / watched.Seconds()
	return s.stop("many")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// soon waits for what nothing announces, with a look each millisecond.
func soon(is func() bool) error {
	deadline := time.Now().Add(agent.Patience)
	for !is() {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v", agent.Patience)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// settled reads until two looks, 2 s apart, say the same but for 1 %.
func settled(read func() int) int {
	last := read()
	for range 15 {
		time.Sleep(2 * time.Second)
		now := read()
		grown := now - last
		last = now
		if 100*max(grown, -grown) <= now {
			break
		}
	}
	return last
}

// growth is that from the first to the second, in percent.
func growth(of [2]int) float64 { return 100 * float64(of[1]-of[0]) / float64(of[0]) }

// atRest is the least of the looks of a rest, one each second.
func atRest(read func() int) int {
	least := read()
	for until := time.Now().Add(aRest); time.Now().Before(until); {
		time.Sleep(time.Second)
		least = min(least, read())
	}
	return least
}

func (s side) isReady() bool {
	var nodes []struct {
		Status  string
		Drivers map[string]struct{ Healthy bool }
	}
	return s.get("/v1/nodes", &nodes) == nil && len(nodes) == 1 && nodes[0].Status == "ready" && nodes[0].Drivers["raw_exec"].Healthy
}

func job(name string, count int) map[string]any {
	task := map[string]any{
		"Name": "t", "Driver": "raw_exec", "Config": map[string]any{"command": "/bin/sleep", "args": []string{"100000"}},
		"Resources": map[string]any{"CPU": 1, "MemoryMB": 10}, "KillTimeout": time.Second,
		"LogConfig": map[string]any{"MaxFiles": 1, "MaxFileSizeMB": 1},
	}
	group := map[string]any{
		"Name": "g", "Count": count, "Tasks": []any{task}, "EphemeralDisk": map[string]any{"SizeMB": 10},
		"Update": map[string]any{"MaxParallel": 0},
	}
	return map[string]any{"Job": map[string]any{"ID": name, "Name": name, "Type": "service", "Datacenters": []string{"*"}, "TaskGroups": []any{group}}}
}

// cycle registers a job, waits until it runs, stops it and forgets it; and says how long the first two took.
func (s side) cycle(name string) (time.Duration, error) {
	begun := time.Now()
	if err := s.put("/v1/jobs", job(name, 1)); err != nil {
		return 0, err
	}
	if err := s.running(name, 1); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	if err := s.stop(name); err != nil {
		return 0, err
	}
	return took, s.put("/v1/system/gc", nil)
}

// stop forgets a job and waits until nothing of it runs any more.
func (s side) stop(name string) error {
	if err := s.ask(http.MethodDelete, "/v1/job/"+name+"?purge=true", nil, nil, new(string)); err != nil {
		return err
	}
	return s.until(name, func(status []string) bool {
		return !slices.ContainsFunc(status, func(one string) bool { return one == "running" || one == "pending" })
	})
}

func (s side) running(name string, count int) error {
	return s.until(name, func(status []string) bool {
		running := 0
		for _, one := range status {
			if one == "running" {
				running++
			}
		}
		return running == count
	})
}

// until waits with blocking reads for what the allocations of a job do.
func (s side) until(name string, is func([]string) bool) error {
	deadline, index := time.Now().Add(3*agent.Patience), ""
	for time.Now().Before(deadline) {
		var allocs []struct{ ClientStatus string }
		path := fmt.Sprintf("/v1/job/%s/allocations?all=true&wait=10s&index=%s", name, index)
		if err := s.ask(http.MethodGet, path, nil, &allocs, &index); err != nil {
			return err
		}
		var status []string
		for _, alloc := range allocs {
			status = append(status, alloc.ClientStatus)
		}
		if is(status) {
			return nil
		}
	}
	return fmt.Errorf("the job %s did not come to what it was to do", name)
}

func (s side) get(path string, into any) error {
	return s.ask(http.MethodGet, path, nil, into, new(string))
}

func (s side) put(path string, body any) error {
	return s.ask(http.MethodPut, path, body, nil, new(string))
}

func (s side) ask(method, path string, body, into any, index *string) error {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, "http://127.0.0.1"+path, sent)
	if err != nil {
		return err
	}
	response, err := s.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	*index = response.Header.Get("X-Nomad-Index")
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

func (s side) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(s.process.Pid), name)
}

// rss is the agent's resident memory, in KiB.
func (s side) rss() int {
	text, _ := os.ReadFile(s.proc("status"))
	return number(string(text), "VmRSS:")
}

func (s side) descriptors() int {
	entries, _ := os.ReadDir(s.proc("fd"))
	return len(entries)
}

// switches tells for each thread of the agent how often something woke it.
func (s side) switches() map[string]int {
	tasks, _ := filepath.Glob(s.proc("task/*/status"))
	all := map[string]int{}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err == nil {
			all[task] = number(string(text), "voluntary_ctxt_switches:")
		}
	}
	return all
}

// woken is how often threads were woken between two looks at them. One that ended in between was woken for that.
func woken(before, after map[string]int) int {
	sum := 0
	for task, count := range after {
		sum += count - before[task]
	}
	for task := range before {
		if _, there := after[task]; !there {
			sum++
		}
	}
	return sum
}

// number is the first number behind a word at the beginning of a line.
func number(text, word string) int {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, word); ok {
			fields := strings.Fields(rest)
			if len(fields) > 0 {
				n, _ := strconv.Atoi(fields[0])
				return n
			}
		}
	}
	return 0
}

// helpers is the memory of the processes that stand beside the tasks: those that run the agent's own file.
func (s side) helpers() int {
	own, _ := os.Readlink(s.proc("exe"))
	sum := 0
	for _, p := range agent.Processes() {
		if p.Pid != s.process.Pid && p.Exe == own {
			sum += p.Memory().PSS
		}
	}
	return sum
}

// endAll ends what tasks and helpers are left: in this PID namespace there is nobody else.
func endAll() {
	for _, p := range agent.Processes() {
		if p.Pid != 1 && p.Pid != os.Getpid() {
			syscall.Kill(p.Pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
		}
	}
}
