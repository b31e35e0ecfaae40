package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The executor role as a Nomad driver uses it. (A3, B1, B2)

type task struct {
	*host
	dir, pipes     string
	logFile        string
	stdout, stderr *lockedBuffer
}

func startExecutor(t testing.TB, isolated bool) *task {
	t.Helper()
	argument, logFile := executorConfig(t, isolated)
	command := exec.Command(agentbin(t), "executor", argument)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	e := &task{host: launch(t, command), dir: dir, pipes: t.TempDir(), logFile: logFile}
	// FIFOs as logmon keeps them: a reader is there before the executor opens them.
	e.stdout, e.stderr = fifo(t, filepath.Join(e.pipes, "out")), fifo(t, filepath.Join(e.pipes, "err"))
	return e
}

// launchRequest is what a Nomad host of today fills in, for a shell command.
func (e *task) launchRequest(t testing.TB, more map[string]any, arguments ...string) string {
	t.Helper()
	fields := map[string]any{
		"cmd": arguments[0], "args": arguments[1:],
		"stdout_path": filepath.Join(e.pipes, "out"), "stderr_path": filepath.Join(e.pipes, "err"),
		"env":      []string{"PATH=/usr/local/bin:/usr/bin:/bin", "GREETING=hello"},
		"task_dir": e.dir,
		"resources": map[string]any{
			"allocated_resources": map[string]any{
				"cpu": map[string]any{"cpu_shares": 100}, "memory": map[string]any{"memory_mb": 64},
			},
			"linux_resources": map[string]any{"cpu_shares": 100, "memory_limit_bytes": 64 << 20},
		},
	}
	for key, value := range more {
		fields[key] = value
	}
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (e *task) launch(t testing.TB, more map[string]any, arguments ...string) answer {
	t.Helper()
	return call(t, e.conn, executorService, "Launch", e.launchRequest(t, more, arguments...))
}

func (e *task) wait(t testing.TB) answer {
	t.Helper()
	return call(t, e.conn, executorService, "Wait", `{}`)
}

func wantExit(t testing.TB, out answer, code, signal int) {
	t.Helper()
	if out.get("process") == nil || out.get("process", "time") == nil {
		t.Errorf("process and its time must be present: %v", out)
	}
	if got, sig := out.number("process", "exit_code"), out.number("process", "signal"); got != code || sig != signal {
		t.Errorf("exit_code %d signal %d, not %d and %d", got, sig, code, signal)
	}
}

func TestExecutorPingVersionKill(t *testing.T) {
	e := startExecutor(t, false)
	e.ping(t)
	if version := call(t, e.conn, executorService, "Version", `{}`).get("version"); version != "2.0.0" {
		t.Errorf("version %v", version)
	}
	// Before any Launch it succeeds and does nothing.
	call(t, e.conn, executorService, "Shutdown", `{"signal":"","grace_period":"0"}`)
	socket := e.client.ReattachConfig().Addr.String()
	if took := e.kill(); took > 2*time.Second {
		t.Errorf("kill took %v", took)
	}
	if !e.client.Exited() {
		t.Error("the host does not see it as gone")
	}
	if _, err := os.Stat(socket); err == nil {
		t.Errorf("socket %s is left behind", socket)
	}
	if strings.Contains(e.log.String(), "did not exit gracefully") || strings.Contains(e.log.String(), "plugin failed to exit") {
		t.Error("the host had to kill it")
	}
}

func TestExecutorLogIsHclog(t *testing.T) {
	e := startExecutor(t, false)
	e.launch(t, nil, "/bin/true")
	e.wait(t)
	e.kill()
	text, err := os.ReadFile(e.logFile)
	if err != nil {
		t.Fatalf("the log file is made at start: %v", err)
	}
	checkHclog(t, string(text), "executor")
}

func TestExecutorRunsATask(t *testing.T) {
	e := startExecutor(t, false)
	out := e.launch(t, nil, "/bin/sh", "-c", `echo "$GREETING"; echo oops >&2; exit 3`)
	if out.number("process", "pid") <= 1 || out.number("process", "exit_code") != -1 {
		t.Errorf("launch answered %v", out)
	}
	// Before the end, after it, and again.
	for range 3 {
		wantExit(t, e.wait(t), 3, 0)
	}
	eventually(t, "output in both FIFOs", func() bool {
		return e.stdout.String() == "hello\n" && e.stderr.String() == "oops\n"
	})
	if took := e.kill(); took > 2*time.Second {
		t.Errorf("kill took %v", took)
	}
}

func TestExecutorManyWaiters(t *testing.T) {
	e := startExecutor(t, false)
	e.launch(t, nil, "/bin/sh", "-c", "sleep 0.5; exit 5")
	answers := make(chan answer, 8)
	errors := make(chan error, 8)
	for range 8 {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			out, err := invoke(ctx, t, e.conn, executorService, "Wait", `{}`)
			if err != nil {
				errors <- err
			} else {
				answers <- out
			}
		}()
	}
	// One waiter that gives up must not disturb the others.
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := invoke(short, t, e.conn, executorService, "Wait", `{}`); err == nil {
		t.Error("a cancelled wait answered")
	}
	for range 8 {
		select {
		case out := <-answers:
			wantExit(t, out, 5, 0)
		case err := <-errors:
			t.Errorf("wait: %v", err)
		}
	}
}

func TestExecutorSignal(t *testing.T) {
	e := startExecutor(t, false)
	e.launch(t, nil, "/bin/sh", "-c", `trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done`)
	eventually(t, "the trap is set", func() bool { return e.stdout.String() == "ready\n" })
	call(t, e.conn, executorService, "Signal", fmt.Sprintf(`{"signal":%d}`, syscall.SIGUSR1))
	wantExit(t, e.wait(t), 7, 0)
}

func TestExecutorShutdown(t *testing.T) {
	cases := map[string]struct {
		script       string
		request      string
		code, signal int
	}{
		"signal is enough":  {`echo ready; exec sleep 1000`, `{"signal":"SIGTERM","grace_period":"10000000000"}`, 143, 15},
		"default is SIGINT": {`trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done`, `{"grace_period":"10000000000"}`, 9, 0},
		"no grace":          {`trap '' TERM INT; echo ready; while :; do sleep 0.05; done`, `{"signal":"SIGTERM","grace_period":"0"}`, 137, 9},
		"grace runs out":    {`trap '' TERM; echo ready; while :; do sleep 0.05; done`, `{"signal":"SIGTERM","grace_period":"300000000"}`, 137, 9},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e := startExecutor(t, false)
			pid := e.launch(t, nil, "/bin/sh", "-c", c.script).number("process", "pid")
			eventually(t, "the task runs", func() bool { return e.stdout.String() == "ready\n" })
			call(t, e.conn, executorService, "Shutdown", c.request)
			wantExit(t, e.wait(t), c.code, c.signal)
			eventually(t, "the process is gone", func() bool { return !alive(pid) })
		})
	}
}

func TestExecutorShutdownTakesChildren(t *testing.T) {
	e := startExecutor(t, false)
	e.launch(t, nil, "/bin/sh", "-c", "sleep 1001 & echo $!; exec sleep 1002")
	var child int
	eventually(t, "the child runs", func() bool {
		_, err := fmt.Sscan(e.stdout.String(), &child)
		return err == nil && strings.HasSuffix(e.stdout.String(), "\n")
	})
	call(t, e.conn, executorService, "Shutdown", `{"signal":"SIGTERM","grace_period":"1000000000"}`)
	eventually(t, "the child is gone", func() bool { return !alive(child) })
}

func TestExecutorRefusals(t *testing.T) {
	e := startExecutor(t, false)
	refused := func(name, text string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if out, err := invoke(ctx, t, e.conn, executorService, name, text); err == nil {
			t.Errorf("%s %s answered %v", name, text, out)
		}
	}
	refused("Launch", e.launchRequest(t, nil, "/no/such/command"))
	e.ping(t)
	e.launch(t, nil, "/bin/sleep", "1000")
	refused("Shutdown", `{"signal":"SIGNONSENSE","grace_period":"0"}`)
	call(t, e.conn, executorService, "Shutdown", `{"signal":"SIGKILL","grace_period":"0"}`)
}

func TestExecutorStats(t *testing.T) {
	e := startExecutor(t, false)
	e.launch(t, nil, "/bin/sleep", "1000")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	next := stream(ctx, t, e.conn, executorService, "Stats", `{"interval":"200000000"}`)
	for range 3 {
		sample, err := next()
		if err != nil {
			t.Fatal(err)
		}
		// A Go host dereferences both unchecked.
		if sample.get("stats", "agg_resource_usage") == nil || sample.get("stats", "timestamp") == nil {
			t.Fatalf("sample %v", sample)
		}
	}
}

func TestExecutorSurvivesItsHost(t *testing.T) {
	e := startExecutor(t, false)
	e.launch(t, nil, "/bin/sh", "-c", `trap 'exit 11' USR1; echo ready; while :; do sleep 0.05; done`)
	eventually(t, "the trap is set", func() bool { return e.stdout.String() == "ready\n" })
	config := e.client.ReattachConfig()
	var last *host
	for range 2 {
		last = reattach(t, config)
		last.ping(t)
		call(t, last.conn, executorService, "Version", `{}`)
	}
	call(t, last.conn, executorService, "Signal", fmt.Sprintf(`{"signal":%d}`, syscall.SIGUSR1))
	wantExit(t, call(t, last.conn, executorService, "Wait", `{}`), 11, 0)
	// The first connection is still served.
	wantExit(t, e.wait(t), 11, 0)
	// A reattached process is watched by polling once a second.
	if took := last.kill(); took > 3*time.Second {
		t.Errorf("kill took %v", took)
	}
	if alive(config.Pid) && !e.client.Exited() {
		eventually(t, "the executor is gone", func() bool { return e.client.Exited() })
	}
}

// rootMounts are the folders of this machine that a task's root is assembled from.
func rootMounts() []map[string]any {
	var mounts []map[string]any
	for _, dir := range []string{"/bin", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr"} {
		if _, err := os.Stat(dir); err == nil {
			mounts = append(mounts, map[string]any{"task_path": dir, "host_path": dir, "readonly": true})
		}
	}
	return mounts
}

func TestIsolatedExecutor(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
	e := startExecutor(t, true)
	script := `echo "pid $$"; echo "uid $(id -u)"; touch /usr/x 2>/dev/null && echo wrote; ls /dev/null /proc/self/stat; exit 4`
	e.launch(t, map[string]any{
		"user": "nobody", "mounts": rootMounts(), "resource_limits": true,
		"default_pid_mode": "private", "default_ipc_mode": "private",
	}, "/bin/sh", "-c", script)
	wantExit(t, e.wait(t), 4, 0)
	want := "pid 1\nuid 65534\n/dev/null\n/proc/self/stat\n"
	eventually(t, "output", func() bool { return len(e.stdout.String()) >= len(want) })
	if got := e.stdout.String(); got != want {
		t.Errorf("the task saw %q, not %q", got, want)
	}
	if took := e.kill(); took > 2*time.Second {
		t.Errorf("kill took %v", took)
	}
}

func TestIsolatedExecutorShutdown(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
	e := startExecutor(t, true)
	e.launch(t, map[string]any{
		"user": "nobody", "mounts": rootMounts(), "resource_limits": true,
		"default_pid_mode": "private", "default_ipc_mode": "private",
	}, "/bin/sh", "-c", "sleep 1003 & echo ready; exec sleep 1004")
	eventually(t, "the task runs", func() bool { return e.stdout.String() == "ready\n" })
	call(t, e.conn, executorService, "Shutdown", `{"signal":"SIGKILL","grace_period":"0"}`)
	wantExit(t, e.wait(t), 137, 9)
}
