package interop

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The driver plugins as an agent uses them: found by file name, configured through the schema that they hand out, with
// the real HCL library between the text and the bytes. (N1, A3, A6, H1)

const (
	baseService   = "hashicorp.nomad.plugins.base.proto.BasePlugin"
	driverService = "hashicorp.nomad.plugins.drivers.proto.Driver"
)

type driver struct {
	*host
	name string
}

// link is what an operator puts into the plugin folder.
func link(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(agentbin(t), path); err != nil {
		t.Fatal(err)
	}
	return path
}

// startDriver launches a plugin and does what an agent does before the first task.
func startDriver(t testing.TB, name, config string) *driver {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
	d := &driver{host: launch(t, exec.Command(link(t, name))), name: name}
	info := call(t, d.conn, baseService, "PluginInfo", `{}`)
	if info.get("type") != "DRIVER" || info.get("name") != name {
		t.Fatalf("it is %v", info)
	}
	spec := d.spec(t, baseService, "ConfigSchema")
	for _, node := range []string{`null`, `{"driver":{"ClientMinPort":14000,"ClientMaxPort":14512}}`} {
		call(t, d.conn, baseService, "SetConfig", fmt.Sprintf(
			`{"msgpack_config":%q,"plugin_api_version":"v0.1.0","nomad_config":%s}`, encode(t, spec, config), node))
	}
	return d
}

// spec asks for a schema and hands it to the HCL library.
func (d *driver) spec(t testing.TB, service, method string) hcldec.Spec {
	t.Helper()
	schema, ok := call(t, d.conn, service, method, `{}`).get("spec").(map[string]any)
	if !ok {
		t.Fatalf("%s has no schema", method)
	}
	return convert(t, "", schema)
}

// convert understands the kinds of which the three drivers' schemas are made.
func convert(t testing.TB, key string, schema map[string]any) hcldec.Spec {
	t.Helper()
	text := func(of map[string]any, field string) string { s, _ := of[field].(string); return s }
	child := func(of map[string]any, field string) hcldec.Spec {
		nested, _ := of[field].(map[string]any)
		return convert(t, key, nested)
	}
	kind := func(expression string) cty.Type {
		parsed, diagnostics := hclsyntax.ParseExpression([]byte(expression), "type", hcl.InitialPos)
		wanted, more := typeexpr.TypeConstraint(parsed)
		if diagnostics = append(diagnostics, more...); diagnostics.HasErrors() {
			t.Fatalf("type %q: %v", expression, diagnostics)
		}
		return wanted
	}
	for name, inner := range schema {
		of, _ := inner.(map[string]any)
		label := text(of, "name")
		if label == "" {
			label = key
		}
		required, _ := of["required"].(bool)
		switch name {
		case "object":
			out := hcldec.ObjectSpec{}
			attributes, _ := of["attributes"].(map[string]any)
			for name, attribute := range attributes {
				out[name] = convert(t, name, attribute.(map[string]any))
			}
			return out
		case "Attr":
			return &hcldec.AttrSpec{Name: label, Type: kind(text(of, "type")), Required: required}
		case "block_attrs":
			return &hcldec.BlockAttrsSpec{TypeName: label, ElementType: kind(text(of, "type")), Required: required}
		case "block_value":
			return &hcldec.BlockSpec{TypeName: label, Required: required, Nested: child(of, "nested")}
		case "block_list":
			return &hcldec.BlockListSpec{TypeName: label, Nested: child(of, "nested")}
		case "default":
			return &hcldec.DefaultSpec{Primary: child(of, "primary"), Default: child(of, "default")}
		case "literal":
			parsed, diagnostics := hclsyntax.ParseExpression([]byte(text(of, "value")), "literal", hcl.InitialPos)
			value, more := parsed.Value(nil)
			if diagnostics = append(diagnostics, more...); diagnostics.HasErrors() {
				t.Fatalf("literal: %v", diagnostics)
			}
			return &hcldec.LiteralSpec{Value: value}
		}
	}
	t.Fatalf("schema %v", schema)
	return nil
}

// encode makes of a config block's text what a host sends.
func encode(t testing.TB, spec hcldec.Spec, text string) string {
	t.Helper()
	file, diagnostics := hclsyntax.ParseConfig([]byte(text), "config", hcl.InitialPos)
	if diagnostics.HasErrors() {
		t.Fatalf("config %s: %v", text, diagnostics)
	}
	value, diagnostics := hcldec.Decode(file.Body, spec, nil)
	if diagnostics.HasErrors() {
		t.Fatalf("config %s: %v", text, diagnostics)
	}
	bytes, err := ctymsgpack.Marshal(value, value.Type())
	if err != nil {
		t.Fatalf("config %s: %v", text, err)
	}
	return base64.StdEncoding.EncodeToString(bytes)
}

// allocation is a folder as an agent lays it out, and the task in it.
type allocation struct {
	dir, id string
}

func newAllocation(t testing.TB) *allocation {
	t.Helper()
	random, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		t.Fatal(err)
	}
	a := &allocation{id: strings.TrimSpace(string(random))}
	a.dir = filepath.Join(t.TempDir(), a.id)
	for _, folder := range []string{"alloc/logs", "alloc/data", "web/local", "web/secrets", "web/tmp"} {
		if err := os.MkdirAll(filepath.Join(a.dir, folder), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	// t.TempDir makes folders that only we pass.
	for dir := a.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (a *allocation) task(t testing.TB, d *driver, config string) map[string]any {
	t.Helper()
	resources := map[string]any{"cpu_shares": 100, "memory_limit_bytes": 64 << 20}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		resources["cpuset_cgroup"] = "/sys/fs/cgroup/nomad.slice/share.slice/" + a.id + ".web.scope"
	}
	return map[string]any{
		"id": a.id + "/web/0123abcd", "name": "web", "alloc_id": a.id, "alloc_dir": a.dir,
		"env":         map[string]string{"PATH": "/usr/bin:/bin", "GREETING": "hello"},
		"stdout_path": filepath.Join(a.dir, "alloc/logs/.web.stdout.fifo"),
		"stderr_path": filepath.Join(a.dir, "alloc/logs/.web.stderr.fifo"),
		"resources": map[string]any{
			"allocated_resources": map[string]any{
				"cpu": map[string]any{"cpu_shares": 100}, "memory": map[string]any{"memory_mb": 64},
			},
			"linux_resources": resources,
		},
		"msgpack_driver_config": encode(t, d.spec(t, driverService, "TaskConfigSchema"), config),
	}
}

func (a *allocation) log(name string) string {
	text, _ := os.ReadFile(filepath.Join(a.dir, "alloc/logs", name))
	return string(text)
}

func (d *driver) start(t testing.TB, task map[string]any) answer {
	t.Helper()
	text, err := json.Marshal(map[string]any{"task": task})
	if err != nil {
		t.Fatal(err)
	}
	started := call(t, d.conn, driverService, "StartTask", string(text))
	if started.get("result") != nil || started.get("handle", "driver_state") == nil {
		t.Fatalf("StartTask answered %v", started)
	}
	id := task["id"].(string)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		invoke(ctx, t, d.conn, driverService, "DestroyTask", fmt.Sprintf(`{"task_id":%q,"force":true}`, id)) //nolint:errcheck
	})
	return started
}

func (d *driver) wait(t testing.TB, id string, code, signal int) {
	t.Helper()
	out := call(t, d.conn, driverService, "WaitTask", fmt.Sprintf(`{"task_id":%q}`, id))
	if out.get("err") != nil || out.number("result", "exit_code") != code || out.number("result", "signal") != signal {
		t.Errorf("WaitTask answered %v, not %d and %d", out, code, signal)
	}
}

const shell = `
command = "/bin/sh"
args    = ["-c", <<EOT
trap 'echo caught; exit 7' USR1
echo "$GREETING"; echo oops >&2
while :; do sleep 0.05; done
EOT
]`

var configs = map[string]string{"exec": "", "raw_exec": "enabled = true"}

func eachDriver(t *testing.T, test func(t *testing.T, d *driver)) {
	for name, config := range configs {
		t.Run(name, func(t *testing.T) { test(t, startDriver(t, name, config)) })
	}
}

func TestDriverSaysWhatItIs(t *testing.T) {
	all := maps.Clone(configs)
	all["java"] = ""
	for name, config := range all {
		t.Run(name, func(t *testing.T) {
			d := startDriver(t, name, config)
			capabilities := call(t, d.conn, driverService, "Capabilities", `{}`)
			if capabilities.get("capabilities", "disable_log_collection") != true {
				t.Errorf("capabilities %v", capabilities)
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			first, err := stream(ctx, t, d.conn, driverService, "Fingerprint", `{}`)()
			if err != nil {
				t.Fatal(err)
			}
			if _, found := exec.LookPath(name); name == "java" && found != nil {
				return
			}
			if first.get("health") != "HEALTHY" || first.get("attributes", "driver."+name) == nil {
				t.Errorf("fingerprint %v", first)
			}
			if took := d.kill(); took > 2*time.Second {
				t.Errorf("kill took %v", took)
			}
		})
	}
}

func TestDriverRunsATask(t *testing.T) {
	eachDriver(t, func(t *testing.T, d *driver) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		stream(ctx, t, d.conn, driverService, "TaskEvents", `{}`) // open for as long as the plugin lives, as an agent's
		a := newAllocation(t)
		task := a.task(t, d, shell)
		id := task["id"].(string)
		d.start(t, task)
		eventually(t, "both logs", func() bool { return a.log("web.stdout.0") == "hello\n" && a.log("web.stderr.0") == "oops\n" })

		named := fmt.Sprintf(`{"task_id":%q}`, id)
		if got := call(t, d.conn, driverService, "InspectTask", named); got.get("task", "state") != "RUNNING" {
			t.Errorf("InspectTask answered %v", got)
		}
		sample, err := stream(ctx, t, d.conn, driverService, "TaskStats",
			fmt.Sprintf(`{"task_id":%q,"collection_interval":"0.2s"}`, id))()
		if err != nil || sample.get("stats", "agg_resource_usage", "memory") == nil {
			t.Errorf("TaskStats answered %v, %v", sample, err)
		}
		ran := call(t, d.conn, driverService, "ExecTask",
			fmt.Sprintf(`{"task_id":%q,"command":["/bin/sh","-c","echo $GREETING; exit 3"],"timeout":"10s"}`, id))
		if out, _ := base64.StdEncoding.DecodeString(fmt.Sprint(ran.get("stdout"))); string(out) != "hello\n" ||
			ran.number("result", "exit_code") != 3 {
			t.Errorf("ExecTask answered %v", ran)
		}
		_, err = invoke(ctx, t, d.conn, driverService, "DestroyTask", named)
		if err == nil {
			t.Error("a running task was destroyed without force")
		}
		call(t, d.conn, driverService, "SignalTask", fmt.Sprintf(`{"task_id":%q,"signal":"SIGUSR1"}`, id))
		d.wait(t, id, 7, 0)
		d.wait(t, id, 7, 0)
		if got := call(t, d.conn, driverService, "InspectTask", named); got.get("task", "state") != "EXITED" {
			t.Errorf("InspectTask answered %v", got)
		}
		call(t, d.conn, driverService, "StopTask", fmt.Sprintf(`{"task_id":%q,"timeout":"1s","signal":"SIGINT"}`, id))
		call(t, d.conn, driverService, "DestroyTask", named)
		_, err = invoke(ctx, t, d.conn, driverService, "WaitTask", named)
		if status.Convert(err).Message() != "task not found for given id" {
			t.Errorf("after its end: %v", err)
		}
	})
}

func TestDriverStops(t *testing.T) {
	eachDriver(t, func(t *testing.T, d *driver) {
		a := newAllocation(t)
		task := a.task(t, d, strings.Replace(shell, "trap 'echo caught; exit 7' USR1", "trap '' INT TERM", 1))
		id := task["id"].(string)
		d.start(t, task)
		eventually(t, "it runs", func() bool { return a.log("web.stdout.0") == "hello\n" })
		call(t, d.conn, driverService, "StopTask", fmt.Sprintf(`{"task_id":%q,"timeout":"0.3s","signal":"SIGINT"}`, id))
		d.wait(t, id, 137, 9)
	})
}

// The plugin is killed; its successor has only the handle, and of the task's config not the driver's part.
func TestDriverRecovers(t *testing.T) {
	eachDriver(t, func(t *testing.T, d *driver) {
		a := newAllocation(t)
		task := a.task(t, d, shell)
		id := task["id"].(string)
		handle, _ := d.start(t, task).get("handle").(map[string]any)
		eventually(t, "it runs", func() bool { return a.log("web.stdout.0") == "hello\n" })
		if err := syscall.Kill(d.client.ReattachConfig().Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the plugin is gone", d.client.Exited)

		next := startDriver(t, d.name, configs[d.name])
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := invoke(ctx, t, next.conn, driverService, "InspectTask", fmt.Sprintf(`{"task_id":%q}`, id)); err == nil {
			t.Error("it knows the task before it was told")
		}
		if config, ok := handle["config"].(map[string]any); ok {
			delete(config, "msgpack_driver_config")
		}
		text, err := json.Marshal(map[string]any{"handle": handle})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time it is known
			call(t, next.conn, driverService, "RecoverTask", string(text))
		}
		call(t, next.conn, driverService, "SignalTask", fmt.Sprintf(`{"task_id":%q,"signal":"SIGUSR1"}`, id))
		next.wait(t, id, 7, 0)
		eventually(t, "the log goes on", func() bool { return a.log("web.stdout.0") == "hello\ncaught\n" })
		call(t, next.conn, driverService, "DestroyTask", fmt.Sprintf(`{"task_id":%q}`, id))

		// Nobody is there any more.
		if _, err := invoke(ctx, t, next.conn, driverService, "RecoverTask", string(text)); err == nil {
			t.Error("a task that is gone was recovered")
		}
	})
}

// execStream runs a command in a task through the stream that `alloc exec` uses.
func (d *driver) execStream(t testing.TB, id string, tty bool, input string, command ...string) (string, string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m := method(t, driverService, "ExecTaskStreaming")
	s, err := d.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		"/"+driverService+"/ExecTaskStreaming")
	if err != nil {
		t.Fatal(err)
	}
	send := func(message map[string]any) {
		t.Helper()
		text, err := json.Marshal(message)
		if err == nil {
			err = s.SendMsg(request(t, m, string(text)))
		}
		if err != nil {
			t.Fatalf("send: %v", err)
		}
	}
	send(map[string]any{"setup": map[string]any{"task_id": id, "command": command, "tty": tty}})
	send(map[string]any{"tty_size": map[string]any{"height": 31, "width": 77}})
	if input != "" {
		send(map[string]any{"stdin": map[string]any{"data": []byte(input)}})
	}
	if !tty {
		send(map[string]any{"stdin": map[string]any{"close": true}})
	}
	var out, errs strings.Builder
	code := -1
	for {
		message := dynamicpb.NewMessage(m.Output())
		err := s.RecvMsg(message)
		if errors.Is(err, io.EOF) {
			return out.String(), errs.String(), code
		}
		if err != nil {
			t.Fatalf("receive: %v; so far %q and %q", err, out.String(), errs.String())
		}
		got, err := decode(message)
		if err != nil {
			t.Fatal(err)
		}
		for name, into := range map[string]*strings.Builder{"stdout": &out, "stderr": &errs} {
			data, _ := base64.StdEncoding.DecodeString(fmt.Sprint(got.get(name, "data")))
			if got.get(name, "data") != nil {
				into.Write(data)
			}
		}
		if got.get("exited") == true {
			code = got.number("result", "exit_code")
		}
	}
}

func TestDriverExecStreaming(t *testing.T) {
	eachDriver(t, func(t *testing.T, d *driver) {
		a := newAllocation(t)
		task := a.task(t, d, shell)
		id := task["id"].(string)
		d.start(t, task)
		out, errs, code := d.execStream(t, id, false, "some input\n", "/bin/sh", "-c", "cat; echo err >&2; exit 9")
		if out != "some input\n" || errs != "err\n" || code != 9 {
			t.Errorf("it printed %q and %q and ended with %d", out, errs, code)
		}
		out, _, code = d.execStream(t, id, true, "stty size; exit 4\n", "/bin/sh")
		if !strings.Contains(out, "31 77\r\n") || code != 4 {
			t.Errorf("with a terminal it printed %q and ended with %d", out, code)
		}
	})
}

// Nomad's client sends what its own caller says from a goroutine of its own and gives a session up as soon as that fails,
// with the answers that it has not read yet. Its caller closes the input at any time: also when the command has just ended.
func TestDriverSessionsOfAHostThatSaysMore(t *testing.T) {
	eachDriver(t, func(t *testing.T, d *driver) {
		a := newAllocation(t)
		task := a.task(t, d, shell)
		id := task["id"].(string)
		d.start(t, task)
		m := method(t, driverService, "ExecTaskStreaming")
		for round := range 40 {
			for command, want := range map[string]int{"echo hello; exit 3": 3, "exit 0": 0} {
				status := -100
				err := func() error {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					s, err := d.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
						"/"+driverService+"/ExecTaskStreaming")
					if err != nil {
						return err
					}
					setup, err := json.Marshal(map[string]any{"setup": map[string]any{
						"task_id": id, "command": []string{"/bin/sh", "-c", command}}})
					if err == nil {
						err = s.SendMsg(request(t, m, string(setup)))
					}
					if err != nil {
						return err
					}
					broken := make(chan error, 1)
					go func() {
						time.Sleep(time.Duration(round) * time.Millisecond)
						broken <- s.SendMsg(request(t, m, `{"stdin":{"close":true}}`))
					}()
					// A host with more to do than this session.
					time.Sleep(time.Duration(round+1) * time.Millisecond)
					for {
						select {
						case err := <-broken:
							if err != nil {
								return fmt.Errorf("closing the input: %w", err)
							}
						default:
						}
						message := dynamicpb.NewMessage(m.Output())
						if err := s.RecvMsg(message); err != nil {
							return err
						}
						got, err := decode(message)
						if err != nil {
							return err
						}
						if got.get("exited") == true {
							status = got.number("result", "exit_code")
						}
					}
				}()
				if status != want || !errors.Is(err, io.EOF) {
					t.Errorf("%s, its input closed after %d ms: status %d, %v", command, round, status, err)
				}
			}
		}
	})
}

func TestDriverRefusals(t *testing.T) {
	eachDriver(t, func(t *testing.T, d *driver) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for name, text := range map[string]string{
			"WaitTask": `{"task_id":"none"}`, "StopTask": `{"task_id":"none","timeout":"1s"}`, "InspectTask": `{"task_id":"none"}`,
			"SignalTask": `{"task_id":"none","signal":"SIGINT"}`, "DestroyTask": `{"task_id":"none"}`,
			"ExecTask": `{"task_id":"none","command":["true"],"timeout":"1s"}`,
		} {
			_, err := invoke(ctx, t, d.conn, driverService, name, text)
			if status.Convert(err).Message() != "task not found for given id" {
				t.Errorf("%s: %v", name, err)
			}
		}
		a := newAllocation(t)
		text, err := json.Marshal(map[string]any{"task": a.task(t, d, `command = "/no/such/program"`)})
		if err != nil {
			t.Fatal(err)
		}
		out, err := invoke(ctx, t, d.conn, driverService, "StartTask", string(text))
		if err == nil && (out.get("result") == nil || out.get("driver_error_msg") == nil) {
			t.Errorf("StartTask of nothing answered %v", out)
		}
		_, err = invoke(ctx, t, d.conn, driverService, "RecoverTask", `{"handle":{"version":1,"driver_state":"gaFhAQ=="}}`)
		if err == nil || status.Code(err) == codes.Unavailable {
			t.Errorf("RecoverTask of a broken handle: %v", err)
		}
		d.ping(t)
	})
}
