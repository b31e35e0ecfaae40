// Command bench measures a Nomad agent with its own drivers and the same agent with agentbin in its plugin folder.
// scripts/bench nomad starts it and tells what is measured how.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentbin.test/nomad/agent"
)

var sides = []string{"stock", "ours"}

var drivers = []string{"exec", "raw_exec"}

// memoryRow is one number of running tasks on one side; all memory in KiB.
type memoryRow struct {
	Driver string `json:"driver"`
	Side   string `json:"side"`
	Tasks  int    `json:"tasks"`

	Executors group `json:"executors"`
	Logmons   group `json:"logmons"`
	Plugins   group `json:"plugins"`
	// PerTaskPSS is that of executors and logmons, by task.
	PerTaskPSS int `json:"per_task_pss_kib"`
	// PerTaskCgroup is the growth of the agent's memory cgroup, which all helpers are in, by task.
	PerTaskCgroup int `json:"per_task_cgroup_kib"`
	// AgentGrowth is the part of it that is the agent's own, by task, as PSS.
	AgentGrowth int `json:"per_task_agent_pss_kib"`
}

// group is what processes of one kind use together.
type group struct {
	Count   int `json:"count"`
	PSS     int `json:"pss_kib"`
	Private int `json:"private_kib"`
}

func (g *group) add(p agent.Process) {
	m := p.Memory()
	g.Count++
	g.PSS += m.PSS
	g.Private += m.Private
}

// startRow is the time from "Task Setup" to "Started" in the history of a task.
type startRow struct {
	Driver string  `json:"driver"`
	Side   string  `json:"side"`
	Root   string  `json:"root"`
	Runs   int     `json:"runs"`
	Median float64 `json:"median_ms"`
	P95    float64 `json:"p95_ms"`
}

type report struct {
	Nomad  string      `json:"nomad"`
	Memory []memoryRow `json:"memory"`
	Start  []startRow  `json:"start"`
}

type options struct {
	json        bool
	runs, tasks int
	nomad, ours string
}

func main() {
	agent.Enter()
	var o options
	flag.BoolVar(&o.json, "json", false, "")
	flag.IntVar(&o.runs, "runs", 30, "")
	flag.IntVar(&o.tasks, "tasks", 100, "")
	flag.Parse()
	o.nomad, o.ours = os.Getenv("NOMAD"), os.Getenv("AGENTBIN")
	if err := measure(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(o options) error {
	if !agent.Inside() {
		return errors.New("needs root")
	}
	if o.nomad == "" || o.ours == "" {
		return errors.New("NOMAD and AGENTBIN are not set; run scripts/bench nomad")
	}
	version, err := exec.Command(o.nomad, "version").Output()
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(version), "\n")
	r := report{Nomad: first}
	for _, side := range sides {
		if err := r.side(o, side); err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
	}
	if o.json {
		text, err := json.MarshalIndent(map[string]any{"nomad": r}, "", "  ")
		if err == nil {
			fmt.Println(string(text))
		}
		return err
	}
	r.print()
	return nil
}

// smallChroot is the least that a stock task can be given: one static program.
const smallChroot = `
  chroot_env = {
    "/bin/busybox" = "/bin/busybox"
  }`

// side measures one of the two.
func (r *report) side(o options, side string) error {
	cgroup, err := memoryCgroup()
	if err != nil {
		return err
	}
	for _, small := range []bool{true, false} {
		config := agent.Config{Nomad: o.nomad, Cgroup: cgroup}
		if side == "ours" {
			config.Agentbin = o.ours
		} else if small {
			config.Client = smallChroot
		}
		if side == "ours" && !small {
			continue // there is nothing to be chosen
		}
		if err := r.agent(o, side, config, small, cgroup); err != nil {
			return err
		}
	}
	return nil
}

func (r *report) agent(o options, side string, config agent.Config, small bool, cgroup string) error {
	dir, err := os.MkdirTemp("", "nomad")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is mounted ends with the namespace
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	config.Dir = dir
	a, err := agent.New(config)
	if err != nil {
		return err
	}
	if err := a.Start(); err != nil {
		return err
	}
	defer a.Stop() //nolint:errcheck // the namespaces end with this program
	if !small {
		// The default chroot_env: a few are enough, each copies or links all of /usr.
		return r.start(a, side, "exec", "default chroot_env", min(o.runs, 3))
	}
	root := "assembled"
	if side == "stock" {
		root = "chroot_env of one file"
	}
	for _, driver := range drivers {
		if driver == "raw_exec" {
			root = "none"
		}
		if err := r.start(a, side, driver, root, o.runs); err != nil {
			return err
		}
		if err := r.memory(a, side, driver, cgroup, counts(o.tasks)); err != nil {
			return err
		}
	}
	return nil
}

func counts(most int) []int {
	all := []int{1, 20, most}
	slices.Sort(all)
	return slices.Compact(slices.DeleteFunc(all, func(n int) bool { return n > most }))
}

func job(name, kind, driver, command string, count int) string {
	return fmt.Sprintf(`
job %q {
  type = %q
  group "g" {
    count = %d
    ephemeral_disk {
      size = 10
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "t" {
      driver = %q
      config {
        command = "/bin/busybox"
        args    = [%s]
      }
      logs {
        max_files     = 1
        max_file_size = 1
      }
      resources {
        cpu    = 1
        memory = 32
      }
    }
  }
}`, name, kind, count, driver, command)
}

func (r *report) start(a *agent.Agent, side, driver, root string, runs int) error {
	var times []float64
	for run := range runs {
		name := fmt.Sprintf("start-%s-%d", driver, run)
		if err := a.Submit(name, job(name, "batch", driver, `"true"`, 1)); err != nil {
			return err
		}
		allocs, err := a.WaitJob(name, "complete", 1)
		if err != nil {
			return err
		}
		state := allocs[0].TaskStates["t"]
		setup, _ := state.Event("Task Setup")
		started, ok := state.Event("Started")
		if !ok {
			return fmt.Errorf("no start in\n%s", agent.Describe(allocs))
		}
		times = append(times, float64(started.Time-setup.Time)/1e6)
	}
	slices.Sort(times)
	r.Start = append(r.Start, startRow{
		Driver: driver, Side: side, Root: root, Runs: runs,
		Median: times[len(times)/2], P95: times[min(len(times)-1, len(times)*95/100)],
	})
	return nil
}

func (r *report) memory(a *agent.Agent, side, driver, cgroup string, counts []int) error {
	name := "memory-" + driver
	agentBefore, err := settled(func() (int, error) { return agentMemory(a).PSS, nil })
	if err != nil {
		return err
	}
	before, err := settled(func() (int, error) { return charged(cgroup) })
	if err != nil {
		return err
	}
	for _, count := range counts {
		if err := a.Submit(name, job(name, "service", driver, `"sleep", "1000000"`, count)); err != nil {
			return err
		}
		if _, err := a.WaitJob(name, "running", count); err != nil {
			return err
		}
		// Helpers have finished what belongs to a start when their memory rests.
		if _, err := settled(func() (int, error) { m := helpers(a, driver); return m.Executors.PSS + m.Logmons.PSS, nil }); err != nil {
			return err
		}
		after, err := settled(func() (int, error) { return charged(cgroup) })
		if err != nil {
			return err
		}
		row := helpers(a, driver)
		row.Driver, row.Side, row.Tasks = driver, side, count
		row.PerTaskPSS = (row.Executors.PSS + row.Logmons.PSS) / count
		row.PerTaskCgroup = (after - before) / count
		row.AgentGrowth = (agentMemory(a).PSS - agentBefore) / count
		if row.Executors.Count != count {
			return fmt.Errorf("%d executors for %d tasks of %s", row.Executors.Count, count, driver)
		}
		r.Memory = append(r.Memory, row)
	}
	if err := a.StopJob(name); err != nil {
		return err
	}
	if _, err := a.Run("system", "gc"); err != nil {
		return err
	}
	var left memoryRow
	// A hundred of the agent's own take minutes: as long as there are fewer each time, it goes on.
	for last := -1; ; last = left.Executors.Count {
		err = agent.Eventually("the executors end", func() bool {
			left = helpers(a, driver)
			return left.Executors.Count == 0
		})
		if err == nil {
			return nil
		}
		if left.Executors.Count == last {
			return fmt.Errorf("%w: %d are left", err, last)
		}
	}
}

func agentMemory(a *agent.Agent) agent.Memory {
	for _, p := range agent.Processes() {
		if p.Pid == a.Pid() {
			return p.Memory()
		}
	}
	return agent.Memory{}
}

// helpers sorts the processes beside an agent by what they do.
func helpers(a *agent.Agent, driver string) memoryRow {
	var row memoryRow
	for _, p := range agent.Processes() {
		switch {
		case p.Is("executor"):
			row.Executors.add(p)
		case p.Is("logmon"):
			row.Logmons.add(p)
		case p.Parent == a.Pid() && filepath.Base(p.Command[0]) == driver:
			row.Plugins.add(p)
		}
	}
	return row
}

// settled reads a figure until it moves by less than one part in a hundred within a second.
func settled(read func() (int, error)) (int, error) {
	last, err := read()
	deadline := time.Now().Add(agent.Patience)
	for err == nil {
		time.Sleep(time.Second)
		var now int
		now, err = read()
		if difference := max(now-last, last-now); difference*100 <= max(now, 1) || time.Now().After(deadline) {
			return now, err
		}
		last = now
	}
	return 0, err
}

// memoryCgroup makes the cgroup that an agent and its helpers are charged to. agent.Enter removes it.
func memoryCgroup() (string, error) {
	parent := "/sys/fs/cgroup/memory"
	if _, err := os.Stat(parent); err != nil {
		parent = "/sys/fs/cgroup"
		if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return "", err
		}
	}
	path := filepath.Join(parent, "nomad-bench")
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	return path, err
}

// charged is anonymous and kernel memory of a cgroup in KiB; files in the page cache are nobody's.
func charged(cgroup string) (int, error) {
	text, err := os.ReadFile(filepath.Join(cgroup, "memory.stat"))
	if err != nil {
		return 0, err
	}
	total := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch fields[0] {
		case "total_rss", "anon", "kernel":
			bytes, err := strconv.Atoi(fields[1])
			if err != nil {
				return 0, err
			}
			total += bytes
		}
	}
	if kernel, err := os.ReadFile(filepath.Join(cgroup, "memory.kmem.usage_in_bytes")); err == nil {
		bytes, err := strconv.Atoi(strings.TrimSpace(string(kernel)))
		if err != nil {
			return 0, err
		}
		total += bytes
	}
	return total / 1024, nil
}

func (r *report) print() {
	fmt.Println(r.Nomad)
	fmt.Println("\nhelpers beside running tasks, MiB of PSS (processes):")
	const head = "%-9s %5s  %-5s  %14s %14s %14s | %12s %12s %12s  %s\n"
	fmt.Printf(head, "driver", "tasks", "side", "executors", "logmon", "plugin", "PSS/task", "cgroup/task", "agent/task", "ratio of PSS/task")
	for _, row := range r.Memory {
		cell := func(g group) string { return fmt.Sprintf("%s (%d)", mib(g.PSS), g.Count) }
		ratio := ""
		for _, other := range r.Memory {
			if row.Side == "ours" && other.Side == "stock" && other.Driver == row.Driver && other.Tasks == row.Tasks {
				ratio = fmt.Sprintf("%.3f of stock", float64(row.PerTaskPSS)/float64(other.PerTaskPSS))
			}
		}
		fmt.Printf(head, row.Driver, strconv.Itoa(row.Tasks), row.Side, cell(row.Executors), cell(row.Logmons), cell(row.Plugins),
			mib(row.PerTaskPSS), mib(row.PerTaskCgroup), mib(row.AgentGrowth), ratio)
	}
	fmt.Println("\nfrom Task Setup to Started, ms:")
	const line = "%-9s %-5s  %-24s %5s %10s %10s  %s\n"
	fmt.Printf(line, "driver", "side", "root", "runs", "median", "p95", "ratio of medians")
	for _, row := range r.Start {
		ratio := ""
		for _, other := range r.Start {
			if other.Side == "ours" && row.Side == "stock" && other.Driver == row.Driver {
				ratio = fmt.Sprintf("ours takes %.3f of it", other.Median/row.Median)
			}
		}
		fmt.Printf(line, row.Driver, row.Side, row.Root, strconv.Itoa(row.Runs), fmt.Sprintf("%.1f", row.Median),
			fmt.Sprintf("%.1f", row.P95), ratio)
	}
}

func mib(kib int) string { return fmt.Sprintf("%.1f", float64(kib)/1024) }
