// Package interop drives agentbin's roles with the real hashicorp/go-plugin as host. (A3)
//
// No generated code: the services are called through descriptors compiled from proto/ when the tests start, so a
// field that moved there is noticed here. AGENTBIN names the binary; scripts/test interop sets it.
package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

const (
	cookieKey   = "NOMAD_PLUGIN_MAGIC_COOKIE"
	cookieValue = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"

	executorService = "hashicorp.nomad.plugins.executor.proto.Executor"
	logmonService   = "hashicorp.nomad.client.logmon.proto.LogMon"

	// Nothing here takes longer, on a slow machine either.
	patience = 30 * time.Second
)

var handshake = plugin.HandshakeConfig{ProtocolVersion: 2, MagicCookieKey: cookieKey, MagicCookieValue: cookieValue}

// descriptors are compiled once from the project's own files.
var descriptors = sync.OnceValues(func() (linker.Files, error) {
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{"../../proto"}}),
	}
	return compiler.Compile(context.Background(), "nomad/executor.proto", "nomad/logmon.proto",
		"nomad/base.proto", "nomad/driver.proto")
})

// method finds "package.Service" and "Method" in the compiled files.
func method(t testing.TB, service, name string) protoreflect.MethodDescriptor {
	t.Helper()
	files, err := descriptors()
	if err != nil {
		t.Fatalf("compile proto/: %v", err)
	}
	for _, file := range files {
		if found, ok := file.FindDescriptorByName(protoreflect.FullName(service)).(protoreflect.ServiceDescriptor); ok {
			if m := found.Methods().ByName(protoreflect.Name(name)); m != nil {
				return m
			}
		}
	}
	t.Fatalf("proto/ has no %s/%s", service, name)
	return nil
}

func request(t testing.TB, m protoreflect.MethodDescriptor, text string) *dynamicpb.Message {
	t.Helper()
	message := dynamicpb.NewMessage(m.Input())
	if err := protojson.Unmarshal([]byte(text), message); err != nil {
		t.Fatalf("%s: request %s: %v", m.FullName(), text, err)
	}
	return message
}

// answer is a response as JSON would show it, with the field names of the .proto file.
type answer map[string]any

func decode(message *dynamicpb.Message) (answer, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	out := answer{}
	return out, json.Unmarshal(text, &out)
}

// get walks into nested messages; a scalar that has its zero value is absent.
func (a answer) get(path ...string) any {
	var at any = map[string]any(a)
	for _, key := range path {
		inner, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = inner[key]
	}
	return at
}

func (a answer) number(path ...string) int {
	number, _ := a.get(path...).(float64)
	return int(number)
}

// invoke calls a unary method with a JSON request.
func invoke(ctx context.Context, t testing.TB, conn *grpc.ClientConn, service, name, text string) (answer, error) {
	t.Helper()
	m := method(t, service, name)
	response := dynamicpb.NewMessage(m.Output())
	err := conn.Invoke(ctx, fmt.Sprintf("/%s/%s", service, name), request(t, m, text), response)
	if err != nil {
		return nil, err
	}
	return decode(response)
}

// call is invoke that must succeed within the patience.
func call(t testing.TB, conn *grpc.ClientConn, service, name, text string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := invoke(ctx, t, conn, service, name, text)
	if err != nil {
		t.Fatalf("%s %s: %v", name, text, err)
	}
	return out
}

// stream opens a server stream and returns a function that reads the next message.
func stream(ctx context.Context, t testing.TB, conn *grpc.ClientConn, service, name, text string) func() (answer, error) {
	t.Helper()
	m := method(t, service, name)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, fmt.Sprintf("/%s/%s", service, name))
	if err == nil {
		err = s.SendMsg(request(t, m, text))
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return func() (answer, error) {
		message := dynamicpb.NewMessage(m.Output())
		if err := s.RecvMsg(message); err != nil {
			return nil, err
		}
		return decode(message)
	}
}

// connPlugin hands the bare connection out, whatever is served at the other end.
type connPlugin struct {
	plugin.NetRPCUnsupportedPlugin
}

func (connPlugin) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

func (connPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

// host is one launched or reattached plugin process.
type host struct {
	client *plugin.Client
	conn   *grpc.ClientConn
	log    *lockedBuffer
	stdout *lockedBuffer
	stderr *lockedBuffer
}

// lockedBuffer is written by go-plugin's goroutines while a test reads it.
type lockedBuffer struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.buffer.String()
}

func newHost(t testing.TB, config *plugin.ClientConfig) *host {
	t.Helper()
	h := &host{log: &lockedBuffer{}, stdout: &lockedBuffer{}, stderr: &lockedBuffer{}}
	config.HandshakeConfig = handshake
	config.Plugins = plugin.PluginSet{"any": connPlugin{}}
	config.AllowedProtocols = []plugin.Protocol{plugin.ProtocolGRPC}
	config.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: h.log, JSONFormat: true})
	config.SyncStdout, config.SyncStderr = h.stdout, h.stderr
	config.StartTimeout = patience
	h.client = plugin.NewClient(config)
	t.Cleanup(func() {
		h.client.Kill()
		if t.Failed() {
			t.Logf("host log:\n%s", h.log)
		}
	})
	protocol, err := h.client.Client()
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	raw, err := protocol.Dispense("any")
	if err != nil {
		t.Fatalf("dispense: %v", err)
	}
	h.conn = raw.(*grpc.ClientConn)
	return h
}

func launch(t testing.TB, command *exec.Cmd) *host {
	t.Helper()
	return newHost(t, &plugin.ClientConfig{Cmd: command})
}

func reattach(t testing.TB, config *plugin.ReattachConfig) *host {
	t.Helper()
	return newHost(t, &plugin.ClientConfig{Reattach: config})
}

func (h *host) ping(t testing.TB) {
	t.Helper()
	protocol, err := h.client.Client()
	if err == nil {
		err = protocol.Ping()
	}
	if err != nil {
		t.Fatalf("ping: %v", err)
	}
}

// kill ends the plugin and returns how long that took.
func (h *host) kill() time.Duration {
	started := time.Now()
	h.client.Kill()
	return time.Since(started)
}

func agentbin(t testing.TB) string {
	t.Helper()
	path := os.Getenv("AGENTBIN")
	if path == "" {
		t.Fatal("AGENTBIN is not set; run scripts/test interop")
	}
	return path
}

// executorConfig is the argument a Nomad driver passes, and the log file it names.
func executorConfig(t testing.TB, isolated bool) (argument, logFile string) {
	t.Helper()
	logFile = filepath.Join(t.TempDir(), "executor.out")
	text, err := json.Marshal(map[string]any{
		"LogFile": logFile, "LogLevel": "debug", "FSIsolation": isolated,
		"Compute": map[string]any{"tc": 4800, "nc": 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text), logFile
}

// skip says why in the form that scripts/test collects.
func skip(t testing.TB, reason string) {
	t.Helper()
	t.Skipf("SKIP: %s: %s", t.Name(), reason)
}

// fifo makes a FIFO and collects what is written to it until its last writer is gone.
func fifo(t testing.TB, path string) *lockedBuffer {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatalf("mkfifo %s: %v", path, err)
	}
	out := &lockedBuffer{}
	// Opened for writing too, so that opening never waits and the reader outlives each writer.
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	t.Cleanup(func() { file.Close() })
	go io.Copy(out, file) //nolint:errcheck // ends when the test closes the file
	return out
}

// eventually waits for a condition that nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// raw is a role started by hand, without go-plugin.
type raw struct {
	command *exec.Cmd
	lines   *bufio.Scanner
	stdout  io.ReadCloser
	stderr  *lockedBuffer
}

func startRaw(t testing.TB, env []string, arguments ...string) *raw {
	t.Helper()
	r := &raw{command: exec.Command(agentbin(t), arguments...), stderr: &lockedBuffer{}}
	r.command.Env = append(environ(), env...)
	r.command.Stderr = r.stderr
	stdout, err := r.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.stdout, r.lines = stdout, bufio.NewScanner(stdout)
	if err := r.command.Start(); err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		r.command.Process.Kill() //nolint:errcheck // it may be gone
		if t.Failed() {
			t.Logf("stderr of the role:\n%s", r.stderr)
		}
	})
	return r
}

// environ is ours without what belongs to the protocol.
func environ() []string {
	var env []string
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "PLUGIN_") && !strings.HasPrefix(pair, cookieKey) {
			env = append(env, pair)
		}
	}
	return env
}

// firstLine is the handshake line, or a failure after the patience.
func (r *raw) firstLine(t testing.TB) string {
	t.Helper()
	line := make(chan string, 1)
	go func() {
		if r.lines.Scan() {
			line <- r.lines.Text()
		}
		close(line)
	}()
	select {
	case text, ok := <-line:
		if !ok {
			t.Fatal("ended without a line on stdout")
		}
		return text
	case <-time.After(patience):
		t.Fatal("no line on stdout")
	}
	return ""
}
