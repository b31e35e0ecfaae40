package nomad

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentbin.test/nomad/agent"
)

// withEngine is an agent whose driver docker is ours, and its engine. (E1)
func withEngine(t *testing.T) (*agent.Agent, *agent.Engine) {
	t.Helper()
	engine := startEngine(t)
	return other(t, agent.Config{Engine: engine.Endpoint()}), engine
}

// startEngine starts an engine that ends with the test, after the agent.
func startEngine(t *testing.T) *agent.Engine {
	t.Helper()
	needsRoot(t)
	for _, program := range []string{"dockerd", "docker", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIP: %s: no %s; scripts/setup installs it", t.Name(), program)
		}
	}
	dir, err := os.MkdirTemp(world.dir, "e")
	must(t, err)
	engine, err := agent.StartEngine(dir)
	must(t, err)
	t.Cleanup(func() {
		stopRunning()
		if err := engine.Stop(); err != nil {
			t.Error(err)
		}
	})
	return engine
}

// gone checks that the engine has no container of an allocation.
func gone(t *testing.T, engine *agent.Engine, alloc string) {
	t.Helper()
	var left []string
	err := agent.Eventually("no container is left", func() bool {
		found, err := engine.Containers("com.hashicorp.nomad.alloc_id=" + alloc)
		left = found
		return err == nil && len(found) == 0
	})
	if err != nil {
		t.Errorf("%v: %v", err, left)
	}
}

// A container does what the other drivers' tasks do: logs, commands, statistics, restarts, an end. (E1, N1)
func TestE1DockerJobs(t *testing.T) {
	a, engine := withEngine(t)
	t.Run("batch", func(t *testing.T) {
		text := job("batch", "batch", noRestart, docker(hello("web", "docker")))
		alloc := run(t, a, "batch", text, "complete", 1)[0]
		if got := taskLogs(t, a, alloc.ID, "web"); got != "hello from web\n" {
			t.Errorf("stdout %q", got)
		}
		if got := taskLogs(t, a, alloc.ID, "web", "-stderr"); got != "oops\n" {
			t.Errorf("stderr %q", got)
		}
		stop(t, a, "batch")
		gone(t, engine, alloc.ID)
	})
	t.Run("restart policy", func(t *testing.T) {
		failing := docker(task{name: "web", driver: "docker", script: "echo failing; exit 3"})
		alloc := run(t, a, "failing", job("failing", "batch", restarting(1), failing), "failed", 1)[0]
		event, _ := alloc.TaskStates["web"].Event("Terminated")
		if alloc.TaskStates["web"].Restarts != 1 || event.Details["exit_code"] != "3" || !strings.Contains(event.Details["exit_message"], "exit code: 3") {
			t.Errorf("ended as\n%s", agent.Describe([]agent.Alloc{alloc}))
		}
		if got := taskLogs(t, a, alloc.ID, "web"); got != strings.Repeat("failing\n", 2) {
			t.Errorf("log %q", got)
		}
		stop(t, a, "failing")
		gone(t, engine, alloc.ID)
	})
	t.Run("service", func(t *testing.T) {
		text := job("service", "service", noRestart, docker(service("web", "docker")))
		alloc := run(t, a, "service", text, "running", 1)[0]
		logged(t, a, alloc.ID, "web", `^ready$`)
		t.Run("logs -f", func(t *testing.T) { followsLogs(t, a, alloc.ID) })
		t.Run("exec", func(t *testing.T) { execs(t, a, alloc.ID) })
		t.Run("exec with TTY", func(t *testing.T) { execsWithTTY(t, a, alloc.ID) })
		t.Run("stats", func(t *testing.T) { showsStats(t, a, alloc.ID) })
		t.Run("restart", func(t *testing.T) { restarts(t, a, alloc.ID) })
		found, err := engine.Containers("com.hashicorp.nomad.alloc_id=" + alloc.ID)
		if err != nil || len(found) != 1 {
			t.Errorf("containers %v, %v", found, err)
		}
		if found := logmons(); len(found) != 0 {
			t.Errorf("logmons %v", found)
		}
		stop(t, a, "service")
		gone(t, engine, alloc.ID)
	})
}

// A container and its lines survive the end of the agent, of the plugin and of the engine. (E3, D3)
func TestE3ContainersSurvive(t *testing.T) {
	a, engine := withEngine(t)
	count := docker(counter("docker", "docker"))
	alloc := run(t, a, "count-docker", job("count-docker", "service", noRestart, count), "running", 1)[0]
	writes := func(more int) {
		t.Helper()
		before := lines(a, alloc.ID, "docker")
		eventually(t, "it goes on writing", func() bool { return lines(a, alloc.ID, "docker") > before+more })
	}
	writes(3)
	container, err := engine.Docker("ps", "-q", "--no-trunc")
	must(t, err)
	same := func(what string) {
		t.Helper()
		writes(20)
		stillTheSame(t, a, []agent.Alloc{alloc})
		now, err := engine.Docker("ps", "-q", "--no-trunc")
		if err != nil || now != container {
			t.Errorf("after the end of %s there are containers %q, not %q (%v)", what, now, container, err)
		}
	}

	a.Kill()
	must(t, a.Start())
	same("the agent")

	for _, p := range agent.Processes() {
		if p.Parent == a.Pid() && filepath.Base(p.Command[0]) == "docker" {
			process, err := os.FindProcess(p.Pid)
			must(t, err)
			must(t, process.Kill())
		}
	}
	eventually(t, "the agent has the driver again", func() bool {
		out, err := a.Run("alloc", "exec", "-i=false", "-t=false", "-task", "docker", alloc.ID, "/bin/echo", "here")
		return err == nil && out == "here\n"
	})
	same("the plugin")

	must(t, engine.Stop())
	must(t, engine.Start())
	same("the engine")

	livesAndEnds(t, a, alloc)
	stop(t, a, "count-docker")
	gone(t, engine, alloc.ID)
}

// Two containers of one group share a network of their own, which a third one holds. (G2)
func TestG2DockerBridgeNetwork(t *testing.T) {
	needsCNI(t)
	a, engine := withEngine(t)
	server := task{name: "web", driver: "docker", script: `
mkdir -p "$NOMAD_ALLOC_DIR/www"; echo hello from web > "$NOMAD_ALLOC_DIR/www/index.html"
exec httpd -f -p "$NOMAD_PORT_http" -h "$NOMAD_ALLOC_DIR/www"`}
	client := task{name: "app", driver: "docker", script: `
until wget -q -O /tmp/answer "http://127.0.0.1:$NOMAD_PORT_http/"; do sleep 0.1; done
echo "asked: $(cat /tmp/answer)"; echo "net: $(readlink /proc/self/ns/net)"; sleep 100000`}
	network := `
 network {
   mode = "bridge"
   port "http" {
     to = 8080
   }
 }`
	alloc := run(t, a, "net", job("net", "service", noRestart+network, server, client), "running", 1)[0]
	logged(t, a, alloc.ID, "app", `^asked: hello from web$`)
	logged(t, a, alloc.ID, "app", `^net: net:`)
	host, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	if strings.Contains(taskLogs(t, a, alloc.ID, "app"), host) {
		t.Error("the container is in the agent's network namespace")
	}
	var details struct {
		AllocatedResources struct {
			Shared struct {
				Ports []struct {
					Label, HostIP string
					Value         int
				}
			}
		}
	}
	must(t, a.Get("/v1/allocation/"+alloc.ID, &details))
	port := details.AllocatedResources.Shared.Ports[0]
	eventually(t, "the port answers from outside of the network", func() bool {
		out, err := exec.Command("busybox", "wget", "-q", "-O", "-", fmt.Sprintf("http://%s:%d/", port.HostIP, port.Value)).Output()
		return err == nil && string(out) == "hello from web\n"
	})
	found, err := engine.Containers("com.hashicorp.nomad.alloc_id=" + alloc.ID)
	if err != nil || len(found) != 3 {
		t.Errorf("containers %v, %v", found, err)
	}
	stop(t, a, "net")
	gone(t, engine, alloc.ID)
}

// docker gives a task the only network that an engine without a bridge has for one alone.
func docker(t task) task {
	t.config += "\n network_mode = \"none\""
	return t
}
