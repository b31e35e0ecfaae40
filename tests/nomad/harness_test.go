// Package nomad runs jobs with the real command line on a real, unmodified Nomad agent that has agentbin in its plugin
// folder as exec, raw_exec, java and docker. (N1, N2, N3, A3, E1, E3, G2)
//
// NOMAD names the agent's program and AGENTBIN ours; scripts/test nomad sets both. NOMAD_STOCK=1 runs the same tests on
// the agent's own drivers: what a test expects of ours is what they do, but where it says otherwise.
package nomad

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentbin.test/nomad/agent"
)

var drivers = []string{"exec", "raw_exec", "java"}

// stock is a run on the agent's own drivers.
var stock = os.Getenv("NOMAD_STOCK") != ""

// files is the folder that the tests' own HTTP server hands out: what artifact blocks fetch.
var files string

const filesAddress = "127.0.0.1:8099"

var world struct {
	dir     string
	running *agent.Agent
	plain   bool
}

func TestMain(m *testing.M) {
	agent.Enter()
	os.Exit(func() int {
		if !agent.Inside() {
			return m.Run() // each test skips itself
		}
		dir, err := os.MkdirTemp("", "nomad")
		if err == nil {
			err = os.Chmod(dir, 0o755) // tasks of other users pass through
		}
		if err == nil {
			world.dir, files = dir, filepath.Join(dir, "files")
			err = os.Mkdir(files, 0o755)
		}
		var listener net.Listener
		if err == nil {
			listener, err = net.Listen("tcp", filesAddress)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "nomad tests:", err)
			return 1
		}
		go http.Serve(listener, http.FileServer(http.Dir(files))) //nolint:errcheck // ends with the program
		status := m.Run()
		if os.Getenv("NOMAD_KEEP") != "" {
			fmt.Fprintln(os.Stderr, "kept:", dir)
			return status
		}
		stopRunning()
		os.RemoveAll(dir) //nolint:errcheck // what is still mounted ends with the namespace
		return status
	}())
}

func stopRunning() {
	if world.running != nil {
		world.running.Stop() //nolint:errcheck // the namespaces end with this program
		world.running = nil
	}
}

func needsRoot(t *testing.T) {
	t.Helper()
	if !agent.Inside() {
		t.Skipf("SKIP: %s: needs root", t.Name())
	}
}

// plain is the agent that an operator has after copying: links, no keys of ours. It is started once.
func plain(t *testing.T) *agent.Agent {
	t.Helper()
	needsRoot(t)
	if world.running == nil || !world.plain {
		other(t, agent.Config{})
		world.plain = true
	} else {
		endsWith(t)
	}
	return world.running
}

// endsWith ends the agent that runs, and all helpers, if the test fails: it may have left tasks, and others count helpers.
func endsWith(t *testing.T) {
	t.Helper()
	running := world.running
	t.Cleanup(func() {
		if !t.Failed() || world.running != running {
			return
		}
		running.Kill()
		world.running, world.plain = nil, false
		programs := []string{running.Nomad, os.Getenv("AGENTBIN")}
		for _, process := range agent.Processes() {
			if process.Pid != os.Getpid() && slices.Contains(programs, process.Exe) {
				syscall.Kill(process.Pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
			}
		}
	})
}

// other starts an agent with another configuration, in the place of the one that runs.
func other(t *testing.T, config agent.Config) *agent.Agent {
	t.Helper()
	needsRoot(t)
	stopRunning()
	if !stock && config.Agentbin == "" {
		config.Agentbin = setting(t, "AGENTBIN")
	}
	return begin(t, config)
}

// onStock is other with the agent's own drivers.
func onStock(t *testing.T, config agent.Config) *agent.Agent {
	t.Helper()
	needsRoot(t)
	stopRunning()
	return begin(t, config)
}

func begin(t *testing.T, config agent.Config) *agent.Agent {
	t.Helper()
	config.Nomad = setting(t, "NOMAD")
	if config.Agentbin == "" && !strings.Contains(config.Client, "chroot_env") {
		config.Client += smallRoot(t)
	}
	dir, err := os.MkdirTemp(world.dir, "a")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	config.Dir = dir
	started, err := agent.New(config)
	if err == nil {
		world.running, world.plain = started, false
		endsWith(t)
		err = started.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return started
}

// answersAs is the release whose answers and decisions our agent gives (src/alloc/facts.rs).
const answersAs = "1.11.3"

// needsItsRelease skips where another release is to be compared with our agent, which does not tell of it.
func needsItsRelease(t *testing.T) {
	t.Helper()
	if found := release(t); found != answersAs {
		t.Skipf("SKIP: %s: our agent answers as %s does, this is %s", t.Name(), answersAs, found)
	}
}

// release is that of the agent, such as 1.10.5.
func release(t *testing.T) string {
	t.Helper()
	return releaseOf(t, setting(t, "NOMAD"))
}

func releaseOf(t *testing.T, nomad string) string {
	t.Helper()
	out, err := exec.Command(nomad, "version").Output()
	must(t, err)
	words := strings.Fields(string(out))
	if len(words) < 2 || words[0] != "Nomad" {
		t.Fatalf("%s version: %q", nomad, out)
	}
	return strings.TrimPrefix(words[1], "v")
}

func setting(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set; run scripts/test nomad", name)
	}
	return value
}

// must fails the test with what the agent logged last.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		tail := ""
		if world.running != nil {
			tail = world.running.LogTail(40)
		}
		t.Fatalf("%v\nthe agent's log ends with:\n%s", err, tail)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	must(t, agent.Eventually(what, ok))
}

// nomad calls the command line; it must succeed.
func nomad(t *testing.T, a *agent.Agent, arguments ...string) string {
	t.Helper()
	out, err := a.Run(arguments...)
	must(t, err)
	return out
}

// task is one task of a job file.
type task struct {
	name, driver string
	// script is what a shell runs, class what java runs.
	script, class string
	// program, when it is not empty, is the command and its arguments in the driver's block, in the place of the shell's.
	program string
	// resources is the block's content, in the place of the usual one, and killTimeout another one than 5 seconds.
	resources, killTimeout string
	// more is added to the task block, config to its driver's.
	more, config string
}

func (t task) block() string {
	config := fmt.Sprintf("command = \"/bin/sh\"\n args = [\"-c\", <<EOT\n%s\nEOT\n]", t.script)
	artifact := ""
	if t.driver == "java" {
		config = fmt.Sprintf("class = %q\n class_path = \"local/app.jar\"\n jvm_options = [\"-Xmx64m\", \"-Xshare:auto\"]", t.class)
		if t.class == "" {
			config = "class = \"App\"\n class_path = \"local/app.jar\"\n jvm_options = [\"-Xmx64m\", \"-Xshare:auto\"]\n" +
				fmt.Sprintf("args = [\"shell\", <<EOT\n%s\nEOT\n]", t.script)
		}
		artifact = fmt.Sprintf(`
      artifact {
        source      = "http://%s/app.jar"
        destination = "local/app.jar"
        mode        = "file"
      }`, filesAddress)
	}
	if t.program != "" {
		config = t.program
	}
	if t.driver == "docker" && !strings.Contains(config, "image =") {
		config = fmt.Sprintf("image = %q\n", agent.Image) + config
	}
	resources, killTimeout := t.resources, t.killTimeout
	if resources == "" {
		resources = "cpu = 50\n memory = 64"
		if t.driver == "java" {
			resources = "cpu = 50\n memory = 256"
		}
	}
	if killTimeout == "" {
		killTimeout = "5s"
	}
	return fmt.Sprintf(`
    task %q {
      driver = %q
      config {
        %s
        %s
      }%s
      resources {
        %s
      }
      kill_timeout = %q
      %s
    }`, t.name, t.driver, config, t.config, artifact, resources, killTimeout, t.more)
}

// job writes a job file with one group.
func job(name, kind, group string, tasks ...task) string {
	blocks := ""
	for _, t := range tasks {
		blocks += t.block()
	}
	return fmt.Sprintf(`
job %q {
  type = %q
  group "g" {
    %s
    %s
  }
}`, name, kind, group, blocks)
}

// noRestart ends a failing allocation at once.
var noRestart = restarting(0)

// restarting ends a failing allocation after so many restarts.
func restarting(attempts int) string {
	return fmt.Sprintf(`
    restart {
      attempts = %d
      interval = "10m"
      delay    = "1s"
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }`, attempts)
}

// run submits a job and waits for so many allocations in a status.
func run(t *testing.T, a *agent.Agent, name, text, status string, count int) []agent.Alloc {
	t.Helper()
	must(t, a.Submit(name, text))
	allocs, err := a.WaitJob(name, status, count)
	must(t, err)
	return allocs
}

// stop ends jobs and checks that nothing of their allocations is left: no process, mount, cgroup or folder.
func stop(t *testing.T, a *agent.Agent, names ...string) {
	t.Helper()
	var allocs []agent.Alloc
	for _, name := range names {
		found, err := a.Allocs(name)
		must(t, err)
		allocs = append(allocs, found...)
		must(t, a.StopJob(name))
	}
	nomad(t, a, "system", "gc")
	for _, alloc := range allocs {
		left := func() string {
			text := ""
			for _, p := range agent.Processes() {
				if strings.Contains(strings.Join(append(p.Cgroups, p.Command...), " "), alloc.ID) {
					text += fmt.Sprintf("process %d %q\n", p.Pid, p.Command)
				}
			}
			if mounts := agent.Mounts(a.AllocDir(alloc.ID)); len(mounts) > 0 {
				text += fmt.Sprintf("mounts %q\n", mounts)
			}
			if cgroups := agent.CgroupsOf(alloc.ID); len(cgroups) > 0 {
				text += fmt.Sprintf("cgroups %q\n", cgroups)
			}
			if _, err := os.Stat(a.AllocDir(alloc.ID)); err == nil {
				text += "folder " + a.AllocDir(alloc.ID) + "\n"
			}
			return text
		}
		if err := agent.Eventually("nothing is left", func() bool { return left() == "" }); err != nil {
			t.Errorf("left of %s after its end:\n%s", alloc.Name, left())
		}
	}
	helpers := executors()
	if err := agent.Eventually("the executors end", func() bool { helpers = executors(); return len(helpers) == 0 }); err != nil {
		t.Errorf("executors left: %v", helpers)
	}
}

// executors are the helper processes of tasks.
func executors() []agent.Process {
	return slices.DeleteFunc(agent.Processes(), func(p agent.Process) bool { return !p.Is("executor") })
}

// logmons are the agent's own log collectors.
func logmons() []agent.Process {
	return slices.DeleteFunc(agent.Processes(), func(p agent.Process) bool { return !p.Is("logmon") })
}

// noHelpers waits until no executor and no log collector of either side is left; else it tells who is.
func noHelpers(t *testing.T, a *agent.Agent) {
	t.Helper()
	var left []agent.Process
	err := agent.Eventually("no helper of either side is left", func() bool {
		left = slices.Concat(logmons(), executors())
		return len(left) == 0
	})
	if err == nil {
		return
	}
	text := ""
	for _, p := range left {
		// The agent names a process as pid=, or id=, at the end of a line.
		text += fmt.Sprintf("%v\n%s\n", p, a.LogOf(fmt.Sprintf("id=%d\n", p.Pid), 20))
	}
	t.Fatalf("%v:\n%s\nthe agent's log ends with:\n%s", err, text, a.LogTail(60))
}

// taskLogs is what a task has written so far, as the command line shows it.
func taskLogs(t *testing.T, a *agent.Agent, alloc, task string, more ...string) string {
	t.Helper()
	out, err := a.Run(append(append([]string{"alloc", "logs"}, more...), "-task", task, alloc)...)
	if err != nil {
		return err.Error()
	}
	return out
}

// logged waits until a task's log has a line that matches.
func logged(t *testing.T, a *agent.Agent, alloc, task, pattern string, more ...string) {
	t.Helper()
	wanted, text := regexp.MustCompile("(?m)"+pattern), ""
	err := agent.Eventually("log of "+task+" has "+pattern, func() bool {
		text = taskLogs(t, a, alloc, task, more...)
		return wanted.MatchString(text)
	})
	if err != nil {
		must(t, fmt.Errorf("%w; it has:\n%s", err, text))
	}
}

// jar compiles the java task's program.
func jar(t *testing.T) {
	t.Helper()
	needsRoot(t)
	target := filepath.Join(files, "app.jar")
	if _, err := os.Stat(target); err == nil {
		return
	}
	for _, tool := range []string{"java", "javac", "jar"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIP: %s: no %s; default-jdk-headless brings it", t.Name(), tool)
		}
	}
	classes := t.TempDir()
	for _, arguments := range [][]string{
		{"javac", "-d", classes, "testdata/App.java"},
		{"jar", "--create", "--file", target, "--main-class", "App", "-C", classes, "."},
	} {
		if out, err := exec.Command(arguments[0], arguments[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", arguments, err, out)
		}
	}
	must(t, os.Chmod(target, 0o644))
}

// eachDriver runs a test for each driver.
func eachDriver(t *testing.T, test func(t *testing.T, driver string)) {
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			if driver == "java" {
				jar(t)
			}
			test(t, driver)
		})
	}
}
