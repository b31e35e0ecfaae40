package nomad

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentbin.test/nomad/agent"
)

// In App.java stands the same for java.
const (
	helloScript   = `echo "hello from $NOMAD_TASK_NAME"; echo oops >&2`
	serviceScript = `trap 'echo got USR2' USR2; trap 'exit 0' HUP; echo ready; while :; do sleep 0.1; done`
	countScript   = `trap 'exit 0' HUP; n=1; while :; do echo "line $n"; n=$((n+1)); sleep 0.05; done`
)

func work(name, driver, script, argument string) task {
	if driver == "java" {
		return task{name: name, driver: driver, class: "App", config: fmt.Sprintf("args = [%q]", argument)}
	}
	return task{name: name, driver: driver, script: script}
}

func hello(name, driver string) task   { return work(name, driver, helloScript, "hello") }
func service(name, driver string) task { return work(name, driver, serviceScript, "service") }

// startService runs a service job with one task named web.
func startService(t *testing.T, a *agent.Agent, name, driver string) agent.Alloc {
	t.Helper()
	alloc := run(t, a, name, job(name, "service", noRestart, service("web", driver)), "running", 1)[0]
	logged(t, a, alloc.ID, "web", `^ready$`)
	return alloc
}

// What is in the plugin folder is what the agent uses. (N1)
func TestN1AgentUsesOurPlugins(t *testing.T) {
	a := plain(t)
	if stock {
		t.Skip("SKIP: TestN1AgentUsesOurPlugins: the stock drivers are no plugins")
	}
	log := a.Log()
	for _, driver := range drivers {
		path := filepath.Join(a.Dir, "plugins", driver)
		// The agent says which file it starts as a driver's plugin.
		if !regexp.MustCompile(`starting plugin.*` + regexp.QuoteMeta(path) + `\b`).MatchString(log) {
			t.Errorf("the agent's log does not say that it starts %s", path)
		}
		if strings.Contains(log, "failed to load plugin") {
			t.Error("the agent could not load a plugin")
		}
		found := false
		for _, p := range agent.Processes() {
			found = found || p.Parent == a.Pid() && filepath.Base(p.Command[0]) == driver && sameFile(t, p.Pid)
		}
		if !found {
			t.Errorf("no child of the agent is our binary as %s", driver)
		}
	}
	var nodes []struct {
		ID string
	}
	must(t, a.Get("/v1/nodes", &nodes))
	var node struct {
		Attributes map[string]string
		Drivers    map[string]struct {
			Detected, Healthy bool
			HealthDescription string
		}
	}
	must(t, a.Get("/v1/node/"+nodes[0].ID, &node))
	for _, driver := range drivers {
		if d := node.Drivers[driver]; !d.Healthy || !d.Detected || d.HealthDescription != "Healthy" {
			t.Errorf("%s: %+v", driver, d)
		}
		if node.Attributes["driver."+driver] != "1" && node.Attributes["driver."+driver] != "true" {
			t.Errorf("attribute driver.%s is %q", driver, node.Attributes["driver."+driver])
		}
	}
	if _, err := exec.LookPath("java"); err == nil && node.Attributes["driver.java.version"] == "" {
		t.Error("no attribute driver.java.version")
	}
}

// sameFile tells whether a process runs the program under test.
func sameFile(t *testing.T, pid int) bool {
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	ours, err := os.Stat(setting(t, "AGENTBIN"))
	return err == nil && os.SameFile(theirs, ours)
}

func TestN1Batch(t *testing.T) {
	eachDriver(t, func(t *testing.T, driver string) {
		a, name := plain(t), "batch-"+driver
		alloc := run(t, a, name, job(name, "batch", noRestart, hello("web", driver)), "complete", 1)[0]
		want := map[bool]string{false: "hello from web\n", true: "hello from java web\n"}[driver == "java"]
		if got := taskLogs(t, a, alloc.ID, "web"); got != want {
			t.Errorf("stdout %q, not %q", got, want)
		}
		if got := taskLogs(t, a, alloc.ID, "web", "-stderr"); !strings.HasPrefix(got, "oops") {
			t.Errorf("stderr %q", got)
		}
		event, _ := alloc.TaskStates["web"].Event("Terminated")
		if event.Details["exit_code"] != "0" || alloc.TaskStates["web"].Failed {
			t.Errorf("ended as\n%s", agent.Describe([]agent.Alloc{alloc}))
		}
		stop(t, a, name)
	})
}

func TestN1RestartPolicy(t *testing.T) {
	eachDriver(t, func(t *testing.T, driver string) {
		a, name := plain(t), "restarts-"+driver
		failing := work("web", driver, "echo failing; exit 1", "fail")
		alloc := run(t, a, name, job(name, "batch", restarting(2), failing), "failed", 1)[0]
		state := alloc.TaskStates["web"]
		event, _ := state.Event("Terminated")
		if state.Restarts != 2 || !state.Failed || event.Details["exit_code"] != "1" {
			t.Errorf("ended as\n%s", agent.Describe([]agent.Alloc{alloc}))
		}
		if got := taskLogs(t, a, alloc.ID, "web"); got != strings.Repeat("failing\n", 3) {
			t.Errorf("log %q", got)
		}
		stop(t, a, name)
	})
}

func TestN1Service(t *testing.T) {
	eachDriver(t, func(t *testing.T, driver string) {
		a, name := plain(t), "service-"+driver
		alloc := startService(t, a, name, driver)
		t.Run("logs -f", func(t *testing.T) { followsLogs(t, a, alloc.ID) })
		t.Run("exec", func(t *testing.T) { execs(t, a, alloc.ID) })
		t.Run("exec with TTY", func(t *testing.T) { execsWithTTY(t, a, alloc.ID) })
		t.Run("stats", func(t *testing.T) { showsStats(t, a, alloc.ID) })
		t.Run("restart", func(t *testing.T) { restarts(t, a, alloc.ID) })
		t.Run("helpers", func(t *testing.T) {
			if stock {
				return
			}
			for _, p := range executors() {
				if !sameFile(t, p.Pid) {
					t.Errorf("an executor is %s", p.Exe)
				}
			}
			if found := logmons(); len(executors()) != 1 || len(found) != 0 {
				t.Errorf("one task has executors %v and logmons %v", executors(), found)
			}
		})
		stop(t, a, name)
	})
}

// followsLogs reads `alloc logs -f` while a signal has the task write.
func followsLogs(t *testing.T, a *agent.Agent, alloc string) {
	command := a.Command("alloc", "logs", "-f", "-task", "web", alloc)
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	defer command.Wait()         //nolint:errcheck // it is killed
	defer command.Process.Kill() //nolint:errcheck // it runs
	lines := make(chan string, 64)
	go func() {
		defer close(lines)
		text := ""
		buffer := make([]byte, 4096)
		for {
			n, err := out.Read(buffer)
			text += string(buffer[:n])
			for {
				line, rest, found := strings.Cut(text, "\n")
				if !found {
					break
				}
				lines <- line
				text = rest
			}
			if err != nil {
				return
			}
		}
	}()
	next := func(want string) {
		t.Helper()
		select {
		case line := <-lines:
			if line != want {
				t.Fatalf("followed %q, not %q", line, want)
			}
		case <-time.After(agent.Patience):
			t.Fatalf("no line %q", want)
		}
	}
	next("ready")
	for range 2 {
		nomad(t, a, "alloc", "signal", "-s", "SIGUSR2", "-task", "web", alloc)
		next("got USR2")
	}
}

func execs(t *testing.T, a *agent.Agent, alloc string) {
	command := a.Command("alloc", "exec", "-i=false", "-t=false", "-task", "web", alloc,
		"/bin/sh", "-c", `echo "out $NOMAD_TASK_NAME"; echo err >&2; exit 7`)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if command.ProcessState.ExitCode() != 7 || stdout.String() != "out web\n" || stderr.String() != "err\n" {
		t.Errorf("exec: %v, stdout %q, stderr %q", err, &stdout, &stderr)
	}

	command = a.Command("alloc", "exec", "-i", "-t=false", "-task", "web", alloc, "/bin/cat")
	command.Stdin = strings.NewReader(strings.Repeat("some input\n", 10_000))
	out, err := command.Output()
	if err != nil || string(out) != strings.Repeat("some input\n", 10_000) {
		t.Errorf("exec of cat: %v, %d bytes", err, len(out))
	}

	if _, err := a.Run("alloc", "exec", "-i=false", "-t=false", "-task", "web", alloc, "/no/such/program"); err == nil {
		t.Error("a program that does not exist was run")
	}
}

// execsWithTTY has script(1) make the terminal that the command line insists on.
func execsWithTTY(t *testing.T, a *agent.Agent, alloc string) {
	inner := strings.Join([]string{a.Nomad, "alloc", "exec", "-i", "-t", "-task", "web", alloc, "/bin/sh"}, " ")
	command := exec.Command("script", "-q", "-e", "-c", "stty rows 31 cols 77; exec "+inner, "/dev/null")
	command.Env = append(a.Command().Env, "TERM=dumb")
	command.WaitDelay = 5 * time.Second // a killed script leaves its child behind
	in, err := command.StdinPipe()
	must(t, err)
	var out bytes.Buffer
	seen := make(chan struct{})
	command.Stdout = writer(func(p []byte) (int, error) {
		out.Write(p)
		if bytes.Contains(out.Bytes(), []byte("tty=0")) && bytes.Contains(out.Bytes(), []byte("31 77")) {
			select {
			case <-seen:
			default:
				close(seen)
			}
		}
		return len(p), nil
	})
	must(t, command.Start())
	_, err = io.WriteString(in, "test -t 0; echo tty=$?; stty size\n")
	must(t, err)
	// The command line sends its input and the size in any order.
	again, late := time.NewTicker(time.Second), time.After(agent.Patience)
	defer again.Stop()
	for waiting := true; waiting; {
		select {
		case <-seen:
			waiting = false
		case <-again.C:
			_, err = io.WriteString(in, "stty size\n")
			must(t, err)
		case <-late:
			command.Process.Kill() //nolint:errcheck // it runs
			command.Wait()         //nolint:errcheck // killed
			t.Fatalf("no terminal of 31 x 77 inside; it printed %q", &out)
		}
	}
	_, err = io.WriteString(in, "exit 5\n")
	must(t, err)
	err = command.Wait()
	if command.ProcessState.ExitCode() != 5 {
		t.Errorf("exec with TTY ended with %v and printed %q", err, &out)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func showsStats(t *testing.T, a *agent.Agent, alloc string) {
	var stats struct {
		ResourceUsage struct {
			MemoryStats struct{ RSS, Usage uint64 }
			CpuStats    struct{ TotalTicks, Percent float64 }
		}
		Tasks map[string]struct {
			Pids map[string]any
		}
	}
	eventually(t, "stats come", func() bool {
		must(t, a.Get("/v1/client/allocation/"+alloc+"/stats", &stats))
		return stats.ResourceUsage.MemoryStats.RSS+stats.ResourceUsage.MemoryStats.Usage > 0
	})
	if len(stats.Tasks) != 1 {
		t.Errorf("stats of %d tasks", len(stats.Tasks))
	}
	eventually(t, "alloc status -stats shows them", func() bool {
		out := nomad(t, a, "alloc", "status", "-stats", alloc)
		return strings.Contains(out, "Memory Stats") && strings.Contains(out, "CPU Stats")
	})
}

func restarts(t *testing.T, a *agent.Agent, alloc string) {
	nomad(t, a, "alloc", "restart", alloc, "web")
	eventually(t, "the task says ready twice", func() bool {
		return strings.Count(taskLogs(t, a, alloc, "web"), "ready\n") == 2
	})
}

// needsCNI skips a test where an agent cannot make a bridge.
func needsCNI(t *testing.T) {
	t.Helper()
	bridge := ""
	for _, dir := range agent.CNIDirs() {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			bridge = dir
		}
	}
	if _, err := exec.LookPath("iptables"); bridge == "" || err != nil {
		t.Skipf("SKIP: %s: no CNI plugins or no iptables; containernetworking-plugins and iptables bring them", t.Name())
	}
}

// Two tasks of one group see each other on 127.0.0.1 in a network of their own; one of them is java. (B5)
func TestN1BridgeNetwork(t *testing.T) {
	jar(t)
	needsCNI(t)
	a := plain(t)
	for _, driver := range []string{"exec", "raw_exec"} {
		t.Run(driver+" and java", func(t *testing.T) {
			name := "bridge-" + driver
			shell := task{name: "web", driver: driver, script: `
mkdir -p "$NOMAD_ALLOC_DIR/www"; echo hello from shell > "$NOMAD_ALLOC_DIR/www/index.html"
busybox httpd -f -p 127.0.0.1:8080 -h "$NOMAD_ALLOC_DIR/www" &
until busybox wget -q -O - http://127.0.0.1:9090/ > "$NOMAD_TASK_DIR/answer" 2>/dev/null; do sleep 0.1; done
echo "asked: $(cat "$NOMAD_TASK_DIR/answer")"
echo "links: $(ls /sys/class/net | tr '\n' ' ')"
echo "net: $(readlink /proc/self/ns/net)"
wait`}
			java := task{name: "app", driver: "java", class: "App", config: `args = ["serve", "9090", "8080"]`}
			text := job(name, "service", noRestart+"\n network {\n mode = \"bridge\"\n }", shell, java)
			alloc := run(t, a, name, text, "running", 1)[0]
			logged(t, a, alloc.ID, "web", `^asked: hello from java$`)
			logged(t, a, alloc.ID, "app", `^asked: hello from shell$`)
			logged(t, a, alloc.ID, "web", `^net: net:`)
			host, err := os.Readlink("/proc/self/ns/net")
			must(t, err)
			if strings.Contains(taskLogs(t, a, alloc.ID, "web"), host) {
				t.Error("the task is in the agent's network namespace")
			}
			// Nobody listens there in the agent's network.
			if _, err := exec.Command("busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:9090/").Output(); err == nil {
				t.Error("java's port is open in the agent's network")
			}
			stop(t, a, name)
		})
	}
}

// The root of an exec task is assembled, not copied. (N3)
func TestN3NoChrootCopy(t *testing.T) {
	a := plain(t)
	if stock {
		t.Skip("SKIP: TestN3NoChrootCopy: stock copies")
	}
	name := "nocopy"
	alloc := startService(t, a, name, "exec")
	dir := filepath.Join(a.AllocDir(alloc.ID), "web")
	out, err := exec.Command("find", dir, "-xdev", "-type", "f").Output()
	must(t, err)
	if files := strings.Count(string(out), "\n"); files > 10 {
		t.Errorf("%d files in the task's folder", files)
	}
	logged(t, a, alloc.ID, "web", `^ready$`)
	text := nomad(t, a, "alloc", "exec", "-i=false", "-t=false", "-task", "web", alloc.ID, "/bin/sh", "-c",
		`echo a > "$NOMAD_ALLOC_DIR/a" && echo b > "$NOMAD_TASK_DIR/b" && echo dirs; ls -d /alloc /local /secrets
touch /alloc/logs/x 2>/dev/null || echo "logs are read-only"; touch /usr/x 2>/dev/null || echo "usr is read-only"`)
	for _, want := range []string{"dirs\n", "/alloc\n", "/local\n", "/secrets\n", "logs are read-only\n", "usr is read-only\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	stop(t, a, name)
}

// The agent's chroot_env does not reach a plugin; the driver's own does. (N3)
func TestN3OwnChrootEnv(t *testing.T) {
	needsRoot(t)
	if stock {
		t.Skip("SKIP: TestN3OwnChrootEnv: a key of ours")
	}
	folders := `
    chroot_env = {
      "/bin" = "/bin", "/lib" = "/lib", "/lib64" = "/lib64", "/usr/lib" = "/usr/lib", "/usr/bin" = "/usr/bin"
      "/etc/hostname" = "/etc/elsewhere"
    }`
	a := other(t, agent.Config{PluginConfig: map[string]string{"exec": folders}})
	alloc := startService(t, a, "ownenv", "exec")
	out := nomad(t, a, "alloc", "exec", "-i=false", "-t=false", "-task", "web", alloc.ID, "/bin/sh", "-c",
		"echo /etc/else* /usr/*")
	if out != "/etc/elsewhere /usr/bin /usr/lib\n" {
		t.Errorf("the task sees %q", out)
	}
	stop(t, a, "ownenv")
}
