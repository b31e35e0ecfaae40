package interop

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
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

func TestExecutorThatIsTerminatedAnswersWaiters(t *testing.T) {
	e := startExecutor(t, false)
	pid := e.launch(t, nil, "/bin/sleep", "1000").number("process", "pid")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	waited := stream(ctx, t, e.conn, executorService, "Wait", `{}`)
	// On the same connection: the call that waits has arrived before.
	call(t, e.conn, executorService, "Version", `{}`)
	if err := syscall.Kill(e.client.ReattachConfig().Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	out, err := waited()
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	wantExit(t, out, 137, 9)
	eventually(t, "the end of both", func() bool { return !alive(pid) && e.client.Exited() })
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
	refused := func(name, text, why string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		out, err := invoke(ctx, t, e.conn, executorService, name, text)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s %s answered %v, %v", name, text, out, err)
		}
	}
	refused("Launch", e.launchRequest(t, nil, "/no/such/command"), `binary "/no/such/command" could not be found`)
	refused("Launch", e.launchRequest(t, map[string]any{"stdout_path": "/no/such/fifo"}, "/bin/true"),
		"failed to create stdout: /no/such/fifo: no such file or directory")
	e.ping(t)
	e.launch(t, nil, "/bin/sleep", "1000")
	refused("Shutdown", `{"signal":"SIGNONSENSE","grace_period":"1000000000"}`, "error unknown signal given for shutdown")
	// It is killed nevertheless, and without a grace period no other signal is needed.
	call(t, e.conn, executorService, "Shutdown", `{"signal":"SIGNONSENSE","grace_period":"0"}`)
	wantExit(t, e.wait(t), 137, 9)
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

// limit reads a file of the cgroup that the task's main process is in.
func limit(t testing.TB, pid int, controller, v1, v2 string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		parts := strings.SplitN(line, ":", 3)
		dir, name := "/sys/fs/cgroup", v2
		switch {
		case parts[1] == "" && isV2():
		case !isV2() && slices.Contains(strings.Split(parts[1], ","), controller):
			dir, name = filepath.Join(dir, controller), v1
		default:
			continue
		}
		value, err := os.ReadFile(filepath.Join(dir, parts[2], name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(value))
	}
	t.Fatalf("no cgroup of %s in %s", controller, text)
	return ""
}

func isV2() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// B1, B2: a Go host changes the limits of a task that runs.
func TestExecutorUpdatesResources(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "needs root for cgroups")
	}
	for _, isolated := range []bool{false, true} {
		e := startExecutor(t, isolated)
		linux := map[string]any{}
		if isV2() {
			linux["cpuset_cgroup"] = fmt.Sprintf("/sys/fs/cgroup/nomad.slice/interop-%d-%t.scope", os.Getpid(), isolated)
		}
		more := map[string]any{
			"resource_limits": true, "user": "nobody",
			"resources": map[string]any{
				"allocated_resources": map[string]any{
					"cpu": map[string]any{"cpu_shares": 100}, "memory": map[string]any{"memory_mb": 64},
				},
				"linux_resources": linux,
			},
		}
		if isolated {
			more["mounts"] = rootMounts()
		}
		pid := e.launch(t, more, "/bin/sleep", "1000").number("process", "pid")
		if got := limit(t, pid, "memory", "memory.limit_in_bytes", "memory.max"); got != "67108864" {
			t.Errorf("isolated %t: the memory limit is %s", isolated, got)
		}
		update := `{"resources":{"allocated_resources":{"cpu":{"cpu_shares":1024},"memory":{"memory_mb":96,"memory_max_mb":128}}}}`
		for range 2 {
			call(t, e.conn, executorService, "UpdateResources", update)
			if got := limit(t, pid, "memory", "memory.limit_in_bytes", "memory.max"); got != "134217728" {
				t.Errorf("isolated %t: the new memory limit is %s", isolated, got)
			}
			if got := limit(t, pid, "cpu", "cpu.shares", "cpu.weight"); got != "1024" && got != "100" {
				t.Errorf("isolated %t: the new shares are %s", isolated, got)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for request, why := range map[string]string{
			`{}`: "resources are required",
			`{"resources":{"allocated_resources":{"memory":{"memory_mb":128,"memory_max_mb":64}}}}`: "below the 128 MiB",
			`{"resources":{"linux_resources":{"cpu_quota":"1","cpu_period":"1"}}}`:                  "is not a limit",
		} {
			_, err := invoke(ctx, t, e.conn, executorService, "UpdateResources", request)
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("isolated %t: %s: %v", isolated, request, err)
			}
		}
		if got := limit(t, pid, "memory", "memory.limit_in_bytes", "memory.max"); got != "134217728" {
			t.Errorf("isolated %t: a refusal has changed the limit to %s", isolated, got)
		}
		call(t, e.conn, executorService, "Shutdown", `{"signal":"SIGTERM","grace_period":"0"}`)
		e.kill()
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

// A host without our extension gets what Nomad's executor does: programs in directories that everybody can write to run, and
// these directories stay as they are.
func TestIsolatedExecutorLeavesDirectoriesAsTheyAre(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
	e := startExecutor(t, true)
	alloc, err := os.MkdirTemp("", "alloc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(alloc) })
	e.dir = filepath.Join(alloc, "task")
	err = errors.Join(
		os.Chmod(alloc, 0o777),
		os.Mkdir(e.dir, 0o777),
		os.WriteFile(filepath.Join(e.dir, "hello"), []byte("#!/bin/sh\necho hello\n"), 0o755),
		os.Chmod(e.dir, 0o777),
		os.Chown(e.dir, 65534, 65534),
	)
	if err != nil {
		t.Fatal(err)
	}
	e.launch(t, map[string]any{
		"user": "root", "mounts": rootMounts(), "resource_limits": true,
		"default_pid_mode": "private", "default_ipc_mode": "private",
	}, "hello")
	wantExit(t, e.wait(t), 0, 0)
	eventually(t, "output", func() bool { return e.stdout.String() == "hello\n" })
	info, err := os.Stat(e.dir)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky != 0 || owner != 65534 {
		t.Errorf("the task's directory has mode %v and owner %d", info.Mode(), owner)
	}
}

// The user with the name "root" has the 38 capabilities that Nomad's executor gives it, whatever list the request has. (B3)
func TestIsolatedExecutorRootHasNomadsCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "CapBnd:\t")
	var bounding uint64
	if _, err := fmt.Sscanf(after, "%x", &bounding); err != nil {
		t.Fatal(err)
	}
	e := startExecutor(t, true)
	e.launch(t, map[string]any{
		"user": "root", "mounts": rootMounts(), "resource_limits": true, "capabilities": []string{"CAP_KILL"},
		"default_pid_mode": "private", "default_ipc_mode": "private",
	}, "grep", "CapEff:", "/proc/self/status")
	wantExit(t, e.wait(t), 0, 0)
	want := fmt.Sprintf("CapEff:\t%016x\n", bounding&(1<<38-1))
	eventually(t, want, func() bool { return e.stdout.String() == want })
}

// session is ExecStreaming as a Go host uses it: it never half-closes.
type session struct {
	t      testing.TB
	method protoreflect.MethodDescriptor
	stream grpc.ClientStream
}

func (e *task) session(ctx context.Context, t testing.TB, tty bool, command ...string) *session {
	t.Helper()
	m := method(t, executorService, "ExecStreaming")
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := e.conn.NewStream(ctx, desc, "/"+executorService+"/ExecStreaming")
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t, m, stream}
	setup, err := json.Marshal(map[string]any{"setup": map[string]any{"command": command, "tty": tty}})
	if err != nil {
		t.Fatal(err)
	}
	s.send(string(setup))
	return s
}

func (s *session) send(text string) {
	s.t.Helper()
	if err := s.stream.SendMsg(request(s.t, s.method, text)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) receive() (answer, error) {
	message := dynamicpb.NewMessage(s.method.Output())
	if err := s.stream.RecvMsg(message); err != nil {
		return nil, err
	}
	return decode(message)
}

// until reads frames until `enough` or the end, and tells stdout, the status (-100 without one) and how it ended.
func (s *session) until(enough func(stdout string) bool) (stdout string, status int, err error) {
	status = -100
	for !enough(stdout) {
		frame, err := s.receive()
		if err != nil {
			return stdout, status, err
		}
		if status != -100 {
			s.t.Errorf("a frame after the status: %v", frame)
		}
		if text, ok := frame.get("stdout", "data").(string); ok {
			data, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				s.t.Fatal(err)
			}
			stdout += string(data)
		}
		if frame.get("exited") == true {
			if frame.get("result") == nil {
				s.t.Errorf("no result: %v", frame)
			}
			status = frame.number("result", "exit_code")
		}
	}
	return stdout, status, nil
}

// A8, B4.
func TestExecutorStreamsACommand(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
	for _, isolated := range []bool{false, true} {
		e := startExecutor(t, isolated)
		more := map[string]any{}
		if isolated {
			more = map[string]any{
				"mounts": rootMounts(), "user": "nobody", "default_pid_mode": "private", "default_ipc_mode": "private",
			}
		}
		e.launch(t, more, "/bin/sleep", "1000")
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended := func(string) bool { return false }

		s := e.session(ctx, t, false, "/bin/sh", "-c", "cat; echo $GREETING; exit 43")
		s.send(`{}`)
		s.send(`{"stdin":{"data":"` + base64.StdEncoding.EncodeToString([]byte("line\n")) + `"}}`)
		s.send(`{"stdin":{"close":true}}`)
		if out, status, err := s.until(ended); out != "line\nhello\n" || status != 43 || err != io.EOF {
			t.Errorf("%q, status %d, %v", out, status, err)
		}

		s = e.session(ctx, t, true, "/bin/sh", "-c", "echo ready; read line; stty size")
		s.until(func(out string) bool { return strings.Contains(out, "ready") })
		s.send(`{"tty_size":{"height":50,"width":40}}`)
		s.send(`{"stdin":{"data":"` + base64.StdEncoding.EncodeToString([]byte("x\n")) + `"}}`)
		if out, status, err := s.until(ended); !strings.HasSuffix(out, "50 40\r\n") || status != 0 || err != io.EOF {
			t.Errorf("%q, status %d, %v", out, status, err)
		}

		for text, setup := range map[string][]string{"command is required": {}, "not": {"/no/such/program"}} {
			_, _, err := e.session(ctx, t, false, setup...).until(ended)
			if err == nil || err == io.EOF || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "Unknown") {
				t.Errorf("%v: %v", setup, err)
			}
		}

		// A caller that cancels takes the command along, also one that takes none of its input.
		going, leave := context.WithCancel(ctx)
		s = e.session(going, t, false, "/bin/sh", "-c", "trap '' TERM HUP INT; echo $$ ready; while :; do sleep 1; done")
		told, _, _ := s.until(func(out string) bool { return strings.Contains(out, "ready") })
		there := "test -d /proc/" + strings.Fields(told)[0]
		if out := call(t, e.conn, executorService, "Exec", execRequest(t, there)); out.number("exit_code") != 0 {
			t.Errorf("%s: %v", there, out)
		}
		for range 40 {
			s.send(`{"stdin":{"data":"` + base64.StdEncoding.EncodeToString(make([]byte, 1<<13)) + `"}}`)
		}
		leave()
		eventually(t, "the command's end", func() bool {
			return call(t, e.conn, executorService, "Exec", execRequest(t, there)).number("exit_code") == 1
		})

		ctx2, cancel2 := context.WithTimeout(context.Background(), patience)
		defer cancel2()
		late := execRequest(t, "sleep 1000", time.Second)
		out, err := invoke(ctx2, t, e.conn, executorService, "Exec", late)
		if isolated && (err == nil || !strings.Contains(err.Error(), "DeadlineExceeded desc = context deadline exceeded")) {
			t.Errorf("%v, %v", out, err)
		}
		if !isolated && (err != nil || out.number("exit_code") != -1) {
			t.Errorf("%v, %v", out, err)
		}
		call(t, e.conn, executorService, "Shutdown", `{"signal":"","grace_period":"0"}`)
		e.kill()
	}
}

func execRequest(t testing.TB, script string, within ...time.Duration) string {
	t.Helper()
	deadline := time.Now().Add(append(within, patience)[0])
	text, err := json.Marshal(map[string]any{
		"deadline": deadline.UTC().Format(time.RFC3339Nano), "cmd": "/bin/sh", "args": []string{"-c", script},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
