package nomad

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"agentbin.test/nomad/agent"
)

func counter(name, driver string) task { return work(name, driver, countScript, "count") }

// written is everything that a task's stdout files hold, in order.
func written(a *agent.Agent, alloc, task string) string {
	text := ""
	for n := 0; ; n++ {
		part, err := os.ReadFile(filepath.Join(a.AllocDir(alloc), "alloc", "logs", fmt.Sprintf("%s.stdout.%d", task, n)))
		if err != nil {
			return text
		}
		text += string(part)
	}
}

func lines(a *agent.Agent, alloc, task string) int {
	return strings.Count(written(a, alloc, task), "\n")
}

// checkNumbers fails when a line is missing, torn or doubled.
func checkNumbers(t *testing.T, text string) {
	t.Helper()
	text = text[:strings.LastIndex(text, "\n")+1]
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if line != "line "+strconv.Itoa(n+1) {
			t.Errorf("line %d is %q", n+1, line)
			return
		}
	}
}

// startCounters runs a mixed job per driver and returns the allocations; each has one task named as its driver.
func startCounters(t *testing.T, a *agent.Agent, counts map[string]int) []agent.Alloc {
	t.Helper()
	var all []agent.Alloc
	for _, driver := range drivers {
		if counts[driver] == 0 {
			continue
		}
		name := "count-" + driver
		group := fmt.Sprintf("count = %d\n%s", counts[driver], noRestart)
		all = append(all, run(t, a, name, job(name, "service", group, counter(driver, driver)), "running", counts[driver])...)
	}
	for _, alloc := range all {
		eventually(t, alloc.Name+" writes", func() bool { return lines(a, alloc.ID, driverOf(alloc)) > 0 })
	}
	return all
}

func driverOf(alloc agent.Alloc) string { return strings.TrimPrefix(alloc.JobID, "count-") }

func executorPids() map[int]bool {
	pids := map[int]bool{}
	for _, p := range executors() {
		pids[p.Pid] = true
	}
	return pids
}

// stillTheSame checks that allocations run on, that no task was restarted and that no line is missing.
func stillTheSame(t *testing.T, a *agent.Agent, before []agent.Alloc) {
	t.Helper()
	for _, old := range before {
		var now agent.Alloc
		must(t, a.Get("/v1/allocation/"+old.ID, &now))
		state := now.TaskStates[driverOf(old)]
		starts := 0
		for _, event := range state.Events {
			if event.Type == "Started" {
				starts++
			}
		}
		if now.ClientStatus != "running" || state.State != "running" || state.Restarts != 0 || starts != 1 {
			t.Errorf("it did not run on:\n%s", agent.Describe([]agent.Alloc{now}))
		}
		checkNumbers(t, written(a, old.ID, driverOf(old)))
	}
	if len(before) > 0 {
		for _, driver := range drivers {
			if allocs, err := a.Allocs("count-" + driver); err == nil {
				for _, alloc := range allocs {
					known := false
					for _, old := range before {
						known = known || old.ID == alloc.ID
					}
					if !known {
						t.Errorf("a new allocation %s came", alloc.Name)
					}
				}
			}
		}
	}
}

// goOn checks that everything works on a task that was there before: logs, signal, exec, stats and, last, its end.
func goOn(t *testing.T, a *agent.Agent, alloc agent.Alloc) {
	t.Helper()
	task := driverOf(alloc)
	eventually(t, "exec in "+alloc.Name, func() bool {
		out, err := a.Run("alloc", "exec", "-i=false", "-t=false", "-task", task, alloc.ID, "/bin/echo", "here")
		return err == nil && out == "here\n"
	})
	livesAndEnds(t, a, alloc)
}

// livesAndEnds is goOn for a task whose executor may be the agent's own: commands in the task are that one's affair.
func livesAndEnds(t *testing.T, a *agent.Agent, alloc agent.Alloc) {
	t.Helper()
	task := driverOf(alloc)
	before := lines(a, alloc.ID, task)
	eventually(t, alloc.Name+" goes on writing", func() bool { return lines(a, alloc.ID, task) > before+5 })
	eventually(t, "stats of "+alloc.Name, func() bool {
		var stats struct {
			ResourceUsage struct {
				MemoryStats struct{ RSS, Usage uint64 }
			}
		}
		err := a.Get("/v1/client/allocation/"+alloc.ID+"/stats", &stats)
		return err == nil && stats.ResourceUsage.MemoryStats.RSS+stats.ResourceUsage.MemoryStats.Usage > 0
	})
	logged(t, a, alloc.ID, task, `^line 1$`)
	nomad(t, a, "alloc", "signal", "-s", "SIGHUP", "-task", task, alloc.ID)
	eventually(t, alloc.Name+" ends by the signal", func() bool {
		var now agent.Alloc
		must(t, a.Get("/v1/allocation/"+alloc.ID, &now))
		event, ok := now.TaskStates[task].Event("Terminated")
		return ok && event.Details["exit_code"] == "0"
	})
}

func stopCounters(t *testing.T, a *agent.Agent, counts map[string]int) {
	t.Helper()
	var names []string
	for _, driver := range drivers {
		if counts[driver] > 0 {
			names = append(names, "count-"+driver)
		}
	}
	stop(t, a, names...)
}

// 0 restarts, 0 lost lines. (B1, N1)
func TestN1AgentKilledWithTwentyTasks(t *testing.T) {
	jar(t)
	a := plain(t)
	counts := map[string]int{"exec": 10, "raw_exec": 7, "java": 3}
	allocs := startCounters(t, a, counts)
	pids := executorPids()
	if len(pids) != len(allocs) {
		t.Errorf("%d executors for %d tasks", len(pids), len(allocs))
	}
	for round := range 2 {
		if round == 0 {
			a.Kill()
		} else {
			must(t, a.Stop())
		}
		// Nobody but the helpers is there now.
		for _, alloc := range allocs {
			before := lines(a, alloc.ID, driverOf(alloc))
			eventually(t, alloc.Name+" writes without an agent", func() bool {
				return lines(a, alloc.ID, driverOf(alloc)) > before+10
			})
		}
		must(t, a.Start())
		stillTheSame(t, a, allocs)
		for pid := range pids {
			if !executorPids()[pid] {
				t.Errorf("executor %d is gone", pid)
			}
		}
	}
	done := map[string]bool{}
	for _, alloc := range allocs {
		if driver := driverOf(alloc); !done[driver] {
			done[driver] = true
			goOn(t, a, alloc)
		}
	}
	stopCounters(t, a, counts)
}

// The driver plugin is killed: the agent starts another one, which takes the tasks over. (A4, B1)
func TestN1PluginKilled(t *testing.T) {
	jar(t)
	a := plain(t)
	if stock {
		t.Skip("SKIP: TestN1PluginKilled: the stock drivers are no plugins")
	}
	counts := map[string]int{"exec": 2, "raw_exec": 2, "java": 1}
	allocs := startCounters(t, a, counts)
	for _, driver := range drivers {
		for round := range 2 {
			old := pluginPid(a, driver)
			if old == 0 {
				t.Fatalf("no plugin process of %s in round %d", driver, round)
			}
			recovered := recoveries(a, driver)
			must(t, syscall.Kill(old, syscall.SIGKILL))
			eventually(t, "another plugin of "+driver+" has its tasks", func() bool {
				pid := pluginPid(a, driver)
				return pid != 0 && pid != old && recoveries(a, driver) == recovered+counts[driver]
			})
		}
	}
	stillTheSame(t, a, allocs)
	done := map[string]bool{}
	for _, alloc := range allocs {
		if driver := driverOf(alloc); !done[driver] {
			done[driver] = true
			goOn(t, a, alloc)
		}
	}
	stopCounters(t, a, counts)
}

// recoveries counts what the agent says of tasks that a new plugin has taken over.
func recoveries(a *agent.Agent, driver string) int {
	wanted := regexp.MustCompile(`task successfully recovered on driver:.* driver=` + driver + `\n`)
	return len(wanted.FindAllString(a.Log(), -1))
}

// pluginPid is the process of a driver's plugin, or 0.
func pluginPid(a *agent.Agent, driver string) int {
	for _, p := range agent.Processes() {
		if p.Parent == a.Pid() && filepath.Base(p.Command[0]) == driver && !p.Is("executor") {
			return p.Pid
		}
	}
	return 0
}

// What we leave in a task's folder is what the agent's own tidying expects there.
func TestN1AgentTidiesUp(t *testing.T) {
	a := plain(t)
	for _, driver := range drivers[:2] {
		name, before := "tidy-"+driver, len(a.Log())
		startService(t, a, name, driver)
		stop(t, a, name)
		if log := a.Log()[before:]; strings.Contains(log, "error running destroy hooks") {
			t.Errorf("%s: the agent says that it could not tidy up", driver)
		}
	}
}

// An orderly end takes the plugins along, and only them.
func TestN1AgentStopsOrderly(t *testing.T) {
	if stock {
		t.Skip("SKIP: TestN1AgentStopsOrderly: the stock drivers are no plugins")
	}
	// An agent that another test has killed before it noted its plugin leaves that plugin to nobody.
	a := other(t, agent.Config{})
	ours := func() map[int][]string {
		found := map[int][]string{}
		for _, p := range agent.Processes() {
			if sameFile(t, p.Pid) {
				found[p.Pid] = p.Command
			}
		}
		return found
	}
	strays := ours()
	for pid := range strays {
		if slices.ContainsFunc(agent.Processes(), func(p agent.Process) bool { return p.Pid == pid && p.Parent == a.Pid() }) {
			delete(strays, pid)
		}
	}
	if len(strays) > 0 {
		t.Logf("left by agents that were killed: %v", strays)
	}
	must(t, a.Stop())
	world.running = nil
	left := map[int][]string{}
	defer func() {
		if t.Failed() {
			t.Logf("left: %v", left)
		}
	}()
	eventually(t, "the plugins end", func() bool {
		left = ours()
		for pid := range strays {
			delete(left, pid)
		}
		return len(left) == 0
	})
	if strings.Contains(a.Log(), "did not exit gracefully") {
		t.Error("the agent had to kill a plugin")
	}
}

// With the log collection handed back, the agent's own collectors and FIFOs are used. (N2)
func TestN2LogCollectionOff(t *testing.T) {
	jar(t)
	if stock {
		t.Skip("SKIP: TestN2LogCollectionOff: a key of ours")
	}
	config := map[string]string{}
	for _, driver := range drivers {
		config[driver] = "collect_logs = false"
	}
	a := other(t, agent.Config{PluginConfig: config, Copies: true})
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			name := "off-" + driver
			alloc := startService(t, a, name, driver)
			if found := logmons(); len(found) != 1 {
				t.Errorf("%d collectors of the agent for one task", len(found))
			}
			fifos, _ := filepath.Glob(filepath.Join(a.AllocDir(alloc.ID), "alloc", "logs", ".web.stdout.fifo"))
			if len(fifos) != 1 {
				t.Errorf("FIFOs %v", fifos)
			}
			nomad(t, a, "alloc", "signal", "-s", "SIGUSR2", "-task", "web", alloc.ID)
			logged(t, a, alloc.ID, "web", `^got USR2$`)
			stop(t, a, name)
		})
	}
}

// One key brings the copied root back. (N3)
func TestN3ChrootBack(t *testing.T) {
	needsRoot(t)
	if stock {
		t.Skip("SKIP: TestN3ChrootBack: a key of ours")
	}
	small := `
  chroot_env = {
    "/bin" = "/bin", "/lib" = "/lib", "/lib64" = "/lib64", "/usr/bin/env" = "/usr/bin/env"
    "/usr/lib/x86_64-linux-gnu/libc.so.6" = "/usr/lib/x86_64-linux-gnu/libc.so.6"
  }`
	a := other(t, agent.Config{Client: small, PluginConfig: map[string]string{"exec": `fs_isolation = "chroot"
    allow_writable_programs = true`}}) // its programs lie in a directory that everybody enters
	alloc := startService(t, a, "chroot", "exec")
	if _, err := os.Stat(filepath.Join(a.AllocDir(alloc.ID), "web", "usr", "bin", "env")); err != nil {
		t.Errorf("the agent did not copy: %v", err)
	}
	out := nomad(t, a, "alloc", "exec", "-i=false", "-t=false", "-task", "web", alloc.ID, "/bin/sh", "-c", "echo /usr/bin/*")
	if !regexp.MustCompile(`^/usr/bin/env\n$`).MatchString(out) {
		t.Errorf("/usr/bin has %q", out)
	}
	stop(t, a, "chroot")
}

// A cluster moves to agentbin and back while its tasks run: each side takes over what the other one has started. (N1, B1)
func TestN1ThereAndBack(t *testing.T) {
	if stock {
		t.Skip("SKIP: TestN1ThereAndBack: needs both")
	}
	a := other(t, agent.Config{Client: smallRoot(t)})
	counts := map[string]int{"exec": 2, "raw_exec": 2}
	move := func(change func() error, before []agent.Alloc) {
		t.Helper()
		must(t, a.Stop())
		must(t, change())
		must(t, a.Start())
		stillTheSame(t, a, before)
		if t.Failed() {
			t.Fatalf("the tasks were not taken over; the agent's log ends with:\n%s", a.LogTail(40))
		}
		livesAndEnds(t, a, before[0])
		livesAndEnds(t, a, before[counts["exec"]])
		stopCounters(t, a, counts)
		noHelpers(t, a)
	}
	move(a.Remove, startCounters(t, a, counts))  // started by ours, taken over by stock
	move(a.Install, startCounters(t, a, counts)) // and the other way round
}
