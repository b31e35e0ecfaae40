package nomad

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentbin.test/nomad/agent"
)

// full is a run at full count.
var full = os.Getenv("AGENTBIN_FULL") != ""

// executorsOf are the helpers of an allocation's task; their argument names its folder.
func executorsOf(alloc string) []int {
	var pids []int
	for _, p := range executors() {
		if strings.Contains(strings.Join(p.Command, " "), alloc) {
			pids = append(pids, p.Pid)
		}
	}
	return pids
}

// starts splits what a counter wrote at each of its starts, and checks the lines of each.
func starts(t *testing.T, what, text string, mayLack bool) int {
	t.Helper()
	count, last := 0, 0
	text = text[:strings.LastIndex(text, "\n")+1]
	for line := range strings.Lines(text) {
		_, digits, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "line ")
		number, err := strconv.Atoi(digits)
		if !strings.HasPrefix(line, "line ") {
			err = strconv.ErrSyntax
		}
		switch {
		case err == nil && number == 1:
			count++
		case err == nil && (number == last+1 || mayLack && number > last):
		case mayLack:
			// The end of a line whose start the killed helper had read, or the other way round.
		default:
			t.Errorf("%s: %q follows line %d", what, line, last)
			return count
		}
		if err == nil {
			last = number
		}
	}
	return count
}

// settled tells whether the agent has an answer for each task that it wanted a new plugin to take over. It asks once, whatever the
// driver: a task whose second plugin dies before it has answered is started anew.
func settled(a *agent.Agent, driver string) bool {
	count := func(what string) int {
		return len(regexp.MustCompile(what+`.* driver=`+driver+`\n`).FindAllString(a.Log(), -1))
	}
	return count("attempting to recover task:") ==
		count("task successfully recovered on driver:")+count("failed to (restore handle on|initialize) driver after it exited unexpectedly:")
}

// The agent, plugins, executors and the agent's log collectors are killed at random instants under running tasks. No task ends
// but one whose executor was killed and that does not outlive it, no line of the others is lost, and all of them can be used
// afterwards. AGENTBIN_SEED repeats the instants of an earlier run. (B1, D3, N1, N2)
func TestN1KillsAtRandomInstants(t *testing.T) {
	needsRoot(t)
	if stock {
		t.Skip("SKIP: TestN1KillsAtRandomInstants: the stock drivers are no plugins")
	}
	jar(t)
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("AGENTBIN_SEED"); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		must(t, err)
	}
	t.Logf("AGENTBIN_SEED=%d repeats this", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds, counts := 16, map[string]int{"exec": 4, "raw_exec": 4, "java": 1}
	if full {
		rounds, counts = 150, map[string]int{"exec": 10, "raw_exec": 7, "java": 3}
	}
	// exec: tasks outlive their executor. raw_exec: the agent collects the lines. java: all as it is.
	a := other(t, agent.Config{PluginConfig: map[string]string{"exec": `on_executor_loss = "adopt"`, "raw_exec": `collect_logs = false`}})
	var allocs []agent.Alloc
	for _, driver := range drivers {
		group := fmt.Sprintf("count = %d\n", counts[driver]) + strings.Replace(restarting(1000), `"10m"`, `"1h"`, 1)
		name := "count-" + driver
		allocs = append(allocs, run(t, a, name, job(name, "service", group, counter(driver, driver)), "running", counts[driver])...)
	}
	for _, alloc := range allocs {
		eventually(t, alloc.Name+" writes", func() bool { return lines(a, alloc.ID, driverOf(alloc)) > 0 })
	}

	// What was killed of each allocation.
	executorKills, collectorKills := map[string]int{}, 0
	// An agent that is killed when a task has just been started again has not saved that start: it starts it once more.
	lastKill, unsaved := map[string]time.Time{}, map[string]int{}
	pluginKills := map[string]time.Time{}
	done := map[string]int{}
	var order []string
	began := time.Now()
	kill := func(what, whom string) {
		done[what]++
		order = append(order, fmt.Sprintf("%v %s %s", time.Since(began).Round(time.Millisecond), what, whom))
	}
	for range rounds {
		time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
		victim := allocs[random.IntN(len(allocs))]
		switch what := []string{"agent", "plugin", "plugin", "executor", "executor", "logmon"}[random.IntN(6)]; what {
		case "agent":
			kill(what, "")
			a.Kill()
			for id, when := range lastKill {
				if time.Since(when) < 5*time.Second {
					unsaved[id]++
				}
			}
			time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
			must(t, a.Start())
		case "plugin":
			driver := driverOf(victim)
			if pid := pluginPid(a, driver); pid != 0 && settled(a, driver) && time.Since(pluginKills[driver]) > 500*time.Millisecond {
				must(t, syscall.Kill(pid, syscall.SIGKILL))
				pluginKills[driver] = time.Now()
				kill(what, driver)
			}
		case "executor":
			if pids := executorsOf(victim.ID); len(pids) == 1 && syscall.Kill(pids[0], syscall.SIGKILL) == nil {
				executorKills[victim.ID]++
				lastKill[victim.ID] = time.Now()
				kill(what, victim.Name)
			}
		case "logmon":
			if found := logmons(); len(found) > 0 && syscall.Kill(found[random.IntN(len(found))].Pid, syscall.SIGKILL) == nil {
				collectorKills++
				kill(what, "")
			}
		}
	}
	t.Logf("killed: %v", done)
	// The agent starts the collectors again when it starts.
	must(t, a.Stop())
	must(t, a.Start())
	for _, alloc := range allocs {
		driver, kills := driverOf(alloc), executorKills[alloc.ID]
		eventually(t, alloc.Name+" runs", func() bool {
			var now agent.Alloc
			return a.Get("/v1/allocation/"+alloc.ID, &now) == nil && now.TaskStates[driver].State == "running"
		})
		before := lines(a, alloc.ID, driver)
		eventually(t, alloc.Name+" goes on writing", func() bool { return lines(a, alloc.ID, driver) > before+5 })
		var now agent.Alloc
		must(t, a.Get("/v1/allocation/"+alloc.ID, &now))
		asked, more := 0, 0
		if driver != "exec" {
			asked, more = kills, unsaved[alloc.ID]
		}
		state := now.TaskStates[driver]
		// The agent starts a task anew whose new collector was killed before it has answered.
		unstarted := 0
		for _, event := range state.Events {
			if event.Type == "Task hook failed" && strings.HasPrefix(event.DisplayMessage, "logmon: ") {
				unstarted++
			}
		}
		if now.ClientStatus != "running" || state.Restarts > asked+min(unstarted, collectorKills) {
			t.Errorf("%d kills of its executor:\n%s", kills, agent.Describe([]agent.Alloc{now}))
		}
		// It would be started anew a while later.
		if lost, ok := state.Event("Failed Restoring Task"); ok && driver == "exec" {
			t.Errorf("%s was not found again: %s", alloc.Name, lost.DisplayMessage)
		}
		// A start that a plugin died without answering is asked for once more.
		unanswered := regexp.MustCompile(`failed to start task because plugin shutdown unexpectedly; .*alloc_id=` + alloc.ID)
		more += min(len(unanswered.FindAllString(a.Log(), -1)), done["plugin"])
		// Lines that a killed helper had read are lost with it.
		mayLack := kills > 0 || driver == "raw_exec" && collectorKills > 0
		if found := starts(t, alloc.Name, written(a, alloc.ID, driver), mayLack); found > 1+asked+more {
			t.Errorf("%s was started %d times, with %d kills of its executor:\n%s\n%s\nkilled:\n%s\nthe agent's log says of it:\n%s",
				alloc.Name, found, kills, aroundStart(written(a, alloc.ID, driver)), agent.Describe([]agent.Alloc{now}),
				strings.Join(order, "\n"), a.LogOf(alloc.ID, 60))
		}
	}
	allocs2, err := a.Allocs("count-exec")
	must(t, err)
	if len(allocs2) != counts["exec"] {
		t.Errorf("%d allocations of exec", len(allocs2))
	}
	seen := map[string]bool{}
	for _, alloc := range allocs {
		if driver := driverOf(alloc); !seen[driver] {
			seen[driver] = true
			eventually(t, "exec in "+alloc.Name, func() bool {
				out, err := a.Run("alloc", "exec", "-i=false", "-t=false", "-task", driver, alloc.ID, "/bin/echo", "here")
				return err == nil && out == "here\n"
			})
		}
	}
	stopCounters(t, a, counts)
	// An agent that is killed before it has stored how to reach a new collector of its own starts another: the first is nobody's.
	eventually(t, "no helper is left but collectors that a killed agent had not stored", func() bool {
		return len(executors()) == 0 && len(logmons()) <= done["agent"]
	})
	for _, p := range logmons() {
		if p.Exe == a.Nomad {
			must(t, syscall.Kill(p.Pid, syscall.SIGKILL))
		}
	}
	noHelpers(t, a)
}

// replaced puts another file of the same program into the plugin folder, as an installation of a newer one does.
func replaced(t *testing.T, a *agent.Agent) {
	t.Helper()
	text, err := os.ReadFile(a.Agentbin)
	must(t, err)
	for _, driver := range drivers {
		path := filepath.Join(a.Dir, "newer")
		// What stands behind the last section is not loaded, and tells the files apart.
		must(t, os.WriteFile(path, append(text[:len(text):len(text)], "newer"...), 0o755))
		must(t, os.Rename(path, filepath.Join(a.Dir, "plugins", driver)))
	}
}

// runsNewer tells whether the plugin of a driver is the file that lies in the folder now.
func runsNewer(a *agent.Agent, driver string) bool {
	pid := pluginPid(a, driver)
	if pid == 0 {
		return false
	}
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	ours, err := os.Stat(filepath.Join(a.Dir, "plugins", driver))
	return err == nil && os.SameFile(theirs, ours)
}

// The program is replaced under running tasks: by the agent's next plugin process, or by the agent's next start. Then it is taken
// out, and the agent's own drivers have the tasks. (A4, B1, N1)
func TestN1UpgradedUnderTasks(t *testing.T) {
	needsRoot(t)
	if stock {
		t.Skip("SKIP: TestN1UpgradedUnderTasks: the stock drivers are no plugins")
	}
	jar(t)
	a := other(t, agent.Config{Copies: true})
	counts := map[string]int{"exec": 2, "raw_exec": 2, "java": 1}
	allocs := startCounters(t, a, counts)
	for round := range 2 {
		replaced(t, a)
		for _, driver := range drivers {
			if runsNewer(a, driver) {
				t.Errorf("%s: what runs is what was put there only now", driver)
			}
		}
		if round == 0 {
			for _, driver := range drivers {
				recovered := recoveries(a, driver)
				must(t, syscall.Kill(pluginPid(a, driver), syscall.SIGKILL))
				eventually(t, "the newer plugin of "+driver+" has its tasks", func() bool {
					return runsNewer(a, driver) && recoveries(a, driver) == recovered+counts[driver]
				})
			}
		} else {
			must(t, a.Stop())
			must(t, a.Start())
			for _, driver := range drivers {
				eventually(t, "the newer plugin of "+driver+" runs", func() bool { return runsNewer(a, driver) })
			}
		}
		stillTheSame(t, a, allocs)
	}
	// What the first program has started is used by the last one, and then by stock to its end.
	for _, alloc := range allocs {
		eventually(t, "exec in "+alloc.Name, func() bool {
			out, err := a.Run("alloc", "exec", "-i=false", "-t=false", "-task", driverOf(alloc), alloc.ID, "/bin/echo", "here")
			return err == nil && out == "here\n"
		})
	}
	must(t, a.Stop())
	must(t, a.Remove())
	must(t, a.Start())
	stillTheSame(t, a, allocs)
	for _, alloc := range allocs {
		livesAndEnds(t, a, alloc)
	}
	stopCounters(t, a, counts)
	noHelpers(t, a)
}

// aroundStart is what stands around the second start of a counter.
func aroundStart(text string) string {
	at := strings.LastIndex(text, "line 1\n")
	return fmt.Sprintf("%q", text[max(0, at-60):min(len(text), at+60)])
}
