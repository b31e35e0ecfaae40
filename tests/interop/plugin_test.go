package interop

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The harness itself, against a plugin that is go-plugin through and through: what fails here is not agentbin.

func goPlugin(t testing.TB) *exec.Cmd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	if out, err := exec.Command("go", "build", "-o", path, "./plugin").CombinedOutput(); err != nil {
		t.Fatalf("build the Go plugin: %v\n%s", err, out)
	}
	return exec.Command(path)
}

func TestHarnessAgainstGoPlugin(t *testing.T) {
	h := launch(t, goPlugin(t))
	h.ping(t)

	out := &wrapperspb.StringValue{}
	if err := h.conn.Invoke(context.Background(), "/agentbin.test.Echo/Echo", wrapperspb.String("hello"), out); err != nil {
		t.Fatal(err)
	}
	if out.GetValue() != "hello" {
		t.Errorf("echo answered %q", out.GetValue())
	}

	for _, name := range []string{"Print", "Log"} {
		err := h.conn.Invoke(context.Background(), "/agentbin.test.Echo/"+name, wrapperspb.String("words"), &emptypb.Empty{})
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "stdout and stderr come over the stdio stream", func() bool {
		return h.stdout.String() == "words\n" && h.stderr.String() == "words\n"
	})
	eventually(t, "the log line keeps its pair", func() bool { return strings.Contains(h.log.String(), `"answer":42`) })

	config := h.client.ReattachConfig()
	for range 2 {
		reattach(t, config).ping(t)
	}
	if took := h.kill(); took > 2*time.Second {
		t.Errorf("kill took %v", took)
	}
}

func TestHarnessCompilesOurProtos(t *testing.T) {
	for _, name := range []string{"Launch", "Wait", "Shutdown", "UpdateResources", "Version", "Stats", "Signal", "Exec", "ExecStreaming"} {
		method(t, executorService, name)
	}
	for _, name := range []string{"Start", "Stop"} {
		method(t, logmonService, name)
	}
	message := request(t, method(t, executorService, "Launch"), `{"cmd":"/bin/true","env":["A=b"],"resources":{"linux_resources":{"cpu_shares":"100"}}}`)
	back, err := decode(message)
	if err != nil {
		t.Fatal(err)
	}
	if back.get("resources", "linux_resources", "cpu_shares") != "100" || back.get("cmd") != "/bin/true" {
		t.Errorf("came back as %v", back)
	}
}
