package interop

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The logmon role as a Nomad client uses it. (D1, A3)

type logs struct {
	dir, out, err string
}

func (l *logs) request(t testing.TB) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"log_dir": l.dir, "stdout_file_name": "web.stdout", "stderr_file_name": "web.stderr",
		"max_files": 3, "max_file_size_mb": 1, "stdout_fifo": l.out, "stderr_fifo": l.err,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func newLogs(t testing.TB) *logs {
	dir := t.TempDir()
	return &logs{dir: dir, out: filepath.Join(dir, ".web.stdout.fifo"), err: filepath.Join(dir, ".web.stderr.fifo")}
}

func (l *logs) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(l.dir, name))
	return string(text)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
}

func TestLogmonCollects(t *testing.T) {
	h, l := launch(t, exec.Command(agentbin(t), "logmon")), newLogs(t)
	h.ping(t)
	call(t, h.conn, logmonService, "Start", l.request(t))
	call(t, h.conn, logmonService, "Start", l.request(t)) // a no-op while both copies run
	for _, path := range []string{l.out, l.err} {
		info, err := os.Stat(path)
		if err != nil || info.Mode()&os.ModeNamedPipe == 0 || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v %v", path, info, err)
		}
	}
	write(t, l.out, "one\ntwo\n")
	write(t, l.err, "bad\n")
	eventually(t, "lines in the files", func() bool {
		return l.read("web.stdout.0") == "one\ntwo\n" && l.read("web.stderr.0") == "bad\n"
	})
	call(t, h.conn, logmonService, "Stop", `{}`)
	if took := h.kill(); took > 2*time.Second {
		t.Errorf("kill took %v", took)
	}
}

func TestLogmonRotates(t *testing.T) {
	h, l := launch(t, exec.Command(agentbin(t), "logmon")), newLogs(t)
	call(t, h.conn, logmonService, "Start", l.request(t))
	line := strings.Repeat("x", 1023) + "\n"
	write(t, l.out, strings.Repeat(line, 5*1024)) // 5 MiB through files of 1 MiB, of which 3 stay
	call(t, h.conn, logmonService, "Stop", `{}`)
	found, _ := filepath.Glob(filepath.Join(l.dir, "web.stdout.*"))
	if len(found) == 0 || len(found) > 3 {
		t.Errorf("files: %v", found)
	}
	for _, path := range found {
		text, _ := os.ReadFile(path)
		if len(text) > 1<<20 || len(text)%1024 != 0 {
			t.Errorf("%s has %d bytes: not whole lines within the limit", path, len(text))
		}
	}
}

func TestLogmonGoesOnWithTheFifosThatAreThere(t *testing.T) {
	l := newLogs(t)
	for round, text := range []string{"first\n", "second\n"} {
		h := launch(t, exec.Command(agentbin(t), "logmon"))
		call(t, h.conn, logmonService, "Start", l.request(t))
		write(t, l.out, text)
		eventually(t, "the line", func() bool { return strings.HasSuffix(l.read("web.stdout.0"), text) })
		if round == 0 {
			// As if it had crashed: no Stop, no clean-up.
			syscall.Kill(h.client.ReattachConfig().Pid, syscall.SIGKILL) //nolint:errcheck // it runs
			eventually(t, "it is dead", h.client.Exited)
		}
	}
	if got := l.read("web.stdout.0"); got != "first\nsecond\n" {
		t.Errorf("the file holds %q", got)
	}
}

func TestLogmonReattach(t *testing.T) {
	h, l := launch(t, exec.Command(agentbin(t), "logmon")), newLogs(t)
	call(t, h.conn, logmonService, "Start", l.request(t))
	config := h.client.ReattachConfig()
	for range 2 {
		reattach(t, config).ping(t)
	}
	call(t, h.conn, logmonService, "Stop", `{}`)
}

func TestLogmonLogIsHclog(t *testing.T) {
	r := startRaw(t, []string{cookie, versions}, "logmon")
	r.firstLine(t)
	if err := r.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.command.Wait() //nolint:errcheck // ended by a signal
	checkHclog(t, r.stderr.String(), "logmon")
}
