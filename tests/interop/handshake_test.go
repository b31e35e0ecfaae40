package interop

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// A3: what a host sees before any gRPC: by hand, byte for byte.

const (
	cookie   = cookieKey + "=" + cookieValue
	versions = "PLUGIN_PROTOCOL_VERSIONS=2"
)

// roles are the arguments of each go-plugin role.
func roles(t testing.TB) map[string][]string {
	argument, _ := executorConfig(t, false)
	return map[string][]string{"executor": {"executor", argument}, "logmon": {"logmon"}}
}

func TestRunByHand(t *testing.T) {
	for name, arguments := range roles(t) {
		for kind, env := range map[string][]string{"absent": nil, "wrong": {cookieKey + "=no", versions}} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				command := exec.Command(agentbin(t), arguments...)
				command.Env = append(environ(), env...)
				stderr := &lockedBuffer{}
				command.Stderr = stderr
				stdout, err := command.Output()
				if code := command.ProcessState.ExitCode(); code != 1 {
					t.Errorf("status %d (%v), not 1", code, err)
				}
				if len(stdout) != 0 {
					t.Errorf("stdout is not empty: %q", stdout)
				}
				if stderr.String() == "" {
					t.Error("nothing on stderr tells a person why")
				}
			})
		}
	}
}

func TestHandshakeLine(t *testing.T) {
	cases := map[string]struct {
		env  []string
		want string
	}{
		"plain":           {[]string{versions}, `^1\|2\|unix\|/[^|]+\|grpc\|$`},
		"other versions":  {[]string{"PLUGIN_PROTOCOL_VERSIONS=5,7"}, `^1\|2\|unix\|/[^|]+\|grpc\|$`},
		"no versions":     {nil, `^1\|2\|unix\|/[^|]+\|grpc\|$`},
		"asks for mux":    {[]string{versions, "PLUGIN_MULTIPLEX_GRPC=true"}, `^1\|2\|unix\|/[^|]+\|grpc\|\|(true|false)$`},
		"mentions mux":    {[]string{versions, "PLUGIN_MULTIPLEX_GRPC=false"}, `^1\|2\|unix\|/[^|]+\|grpc\|\|(true|false)$`},
		"ports are given": {[]string{versions, "PLUGIN_MIN_PORT=14000", "PLUGIN_MAX_PORT=14512"}, `^1\|2\|unix\|/[^|]+\|grpc\|$`},
	}
	for role := range roles(t) {
		for name, c := range cases {
			t.Run(role+"/"+name, func(t *testing.T) {
				r := startRaw(t, append([]string{cookie}, c.env...), roles(t)[role]...)
				if line := r.firstLine(t); !regexp.MustCompile(c.want).MatchString(line) {
					t.Errorf("line %q does not match %s", line, c.want)
				}
			})
		}
	}
}

func TestSocketFollowsTempDir(t *testing.T) {
	for name, arguments := range roles(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := startRaw(t, []string{cookie, versions, "TMPDIR=" + dir}, arguments...)
			fields := strings.Split(r.firstLine(t), "|")
			if !strings.HasPrefix(fields[3], dir+"/plugin") {
				t.Errorf("socket %s does not lie in %s", fields[3], dir)
			}
		})
	}
}

func TestSignals(t *testing.T) {
	for name, arguments := range roles(t) {
		t.Run(name, func(t *testing.T) {
			r := startRaw(t, []string{cookie, versions}, arguments...)
			socket := strings.Split(r.firstLine(t), "|")[3]

			// Ctrl-C goes to the whole process group of the host; plugins must outlive it.
			for range 3 {
				if err := r.command.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			}
			// A host's reattach probe: connect, send nothing, close.
			for range 3 {
				conn, err := net.Dial("unix", socket)
				if err != nil {
					t.Fatalf("gone after SIGINT: %v", err)
				}
				conn.Close()
			}
			if !alive(r.command.Process.Pid) {
				t.Fatal("died of SIGINT")
			}

			if err := r.command.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			rest := &lockedBuffer{}
			for r.lines.Scan() {
				rest.Write(r.lines.Bytes()) //nolint:errcheck // a buffer
			}
			r.command.Wait() //nolint:errcheck // looked at below
			// Either SIGTERM's own action, as in Go, or an orderly end that also removes the socket.
			status := r.command.ProcessState.Sys().(syscall.WaitStatus)
			_, err := os.Stat(socket)
			byTerm, orderly := status.Signaled() && status.Signal() == syscall.SIGTERM, status.ExitStatus() == 0 && err != nil
			if !byTerm && !orderly {
				t.Errorf("ended as %v (socket: %v)", r.command.ProcessState, err)
			}
			if rest.String() != "" {
				t.Errorf("stdout holds more than the handshake: %q", rest)
			}
			os.Remove(socket) //nolint:errcheck // a death by signal may leave it
		})
	}
}

// checkHclog holds lines to what a Go host can parse: strings, six digits, one object per line.
func checkHclog(t testing.TB, text, module string) (lines int) {
	t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if line == "" {
			continue
		}
		lines++
		entry := map[string]any{}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("not a JSON object: %q: %v", line, err)
			continue
		}
		for _, key := range []string{"@level", "@message", "@timestamp"} {
			if _, ok := entry[key].(string); !ok {
				t.Errorf("%s is not a string in %s", key, line)
			}
		}
		stamp, _ := entry["@timestamp"].(string)
		if _, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", stamp); err != nil || !strings.Contains(stamp, ".") {
			t.Errorf("timestamp %q: %v", stamp, err)
		}
		if name, _ := entry["@module"].(string); name != module && !strings.HasPrefix(name, module+".") {
			t.Errorf("@module is %q, not %s, in %s", name, module, line)
		}
	}
	return lines
}

func TestHealthNames(t *testing.T) {
	for name, arguments := range roles(t) {
		t.Run(name, func(t *testing.T) {
			h := launch(t, exec.Command(agentbin(t), arguments...))
			health := healthpb.NewHealthClient(h.conn)
			for _, service := range []string{"plugin", ""} {
				out, err := health.Check(context.Background(), &healthpb.HealthCheckRequest{Service: service})
				if err != nil || out.GetStatus() != healthpb.HealthCheckResponse_SERVING {
					t.Errorf("%q: %v, %v", service, out, err)
				}
			}
			_, err := health.Check(context.Background(), &healthpb.HealthCheckRequest{Service: "other"})
			if status.Code(err) != codes.NotFound {
				t.Errorf("other: %v", err)
			}
		})
	}
}
