package nomad

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"agentbin.test/nomad/agent"
)

// What is in the agent's own environment, in both runs.
var agentEnvironment = []string{
	"INHERITED=from the agent", "LANG=C.UTF-8", "TERM=dumb", "OVERRIDDEN=from the agent",
	"CONSUL_TOKEN=agent's", "VAULT_TOKEN=agent's", "AWS_SECRET_ACCESS_KEY=agent's", "GOOGLE_APPLICATION_CREDENTIALS=agent's",
}

// What may differ, by driver and key, and why. A line that no longer does is a failure, too.
var mayDiffer = map[string]map[string]string{
	"docker": {"HOSTNAME": "the id of the container, which the engine draws"},
}

// lastLine ends what a task prints: an agent's own docker driver reads a container's output besides, and it may come after the
// container has ended, or not at all when it ended at once.
const lastLine = "THE_END=reached"

// environmentJob prints the environment of one task, which has something of everything that Nomad puts there.
func environmentJob(name, driver string) string {
	printing := task{name: "web-1.x", driver: driver, script: "env; echo " + lastLine + "; sleep 1", more: `
      env {
        OVERRIDDEN     = "by the job"
        CONSUL_TOKEN   = "the job's own"
        WITH_REFERENCE = "${NOMAD_TASK_NAME} in ${NOMAD_META_color} on ${attr.kernel.name}"
      }
      meta {
        color      = "blue"
        Mixed-Case = "as it is"
      }
      template {
        data        = "FROM_TEMPLATE=yes"
        destination = "secrets/file.env"
        env         = true
      }`}
	if driver == "java" {
		printing.class, printing.config = "App", `args = ["env", "`+lastLine+`"]`
	}
	return job(name, "batch", noRestart+`
    network {
      port "http" {}
      port "admin-ui" {}
    }
    meta {
      of_group = "yes"
    }`, printing)
}

// environmentOf runs the job and reads what it printed; what an agent draws by lot is replaced.
func environmentOf(t *testing.T, a *agent.Agent, driver string) map[string]string {
	t.Helper()
	name := "environment-" + driver
	alloc := run(t, a, name, environmentJob(name, driver), "complete", 1)[0]
	logged(t, a, alloc.ID, "web-1.x", "^"+lastLine+"$")
	text := taskLogs(t, a, alloc.ID, "web-1.x")
	found := map[string]string{}
	var ports []string
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			t.Fatalf("%s: no line of an environment: %q", driver, line)
		}
		found[key] = value
		if strings.HasPrefix(key, "NOMAD_HOST_PORT_") {
			ports = append(ports, value)
		}
	}
	if len(found) < 20 || len(ports) == 0 {
		t.Fatalf("%s: the task printed\n%s", driver, text)
	}
	var nodes []struct{ ID string }
	must(t, a.Get("/v1/nodes", &nodes))
	replace := []string{a.AllocDir(alloc.ID), "<alloc dir>", alloc.ID, "<alloc id>", alloc.ID[:8], "<alloc>", nodes[0].ID, "<node id>",
		nodes[0].ID[:8], "<node>", a.Dir, "<agent>"}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		replace = append(replace, port, "<port>")
	}
	for key, value := range found {
		found[key] = strings.NewReplacer(replace...).Replace(value)
	}
	stop(t, a, name)
	return found
}

// The same job has the same environment under the agent's own drivers and under ours, key by key. (N1)
func TestN1EnvironmentIsTheSame(t *testing.T) {
	needsRoot(t)
	if stock {
		t.Skip("SKIP: TestN1EnvironmentIsTheSame: compares with ours")
	}
	jar(t)
	all := append(slices.Clone(drivers), "docker")
	config := agent.Config{Env: agentEnvironment, Engine: startEngine(t).Endpoint()}
	theirs := map[string]map[string]string{}
	a := onStock(t, config)
	for _, driver := range all {
		theirs[driver] = environmentOf(t, a, driver)
	}
	a = other(t, config)
	for _, driver := range all {
		t.Run(driver, func(t *testing.T) {
			for _, difference := range differences(theirs[driver], environmentOf(t, a, driver), mayDiffer[driver]) {
				t.Error(difference)
			}
		})
	}
}

// differences are the keys that differ without a reason, and the reasons without a difference.
func differences(theirs, ours, reasons map[string]string) []string {
	keys := slices.Collect(maps.Keys(theirs))
	keys = slices.AppendSeq(keys, maps.Keys(ours))
	slices.Sort(keys)
	show := func(values map[string]string, key string) string {
		if value, ok := values[key]; ok {
			return fmt.Sprintf("%q", value)
		}
		return "nothing"
	}
	var found []string
	for _, key := range slices.Compact(keys) {
		before, now := show(theirs, key), show(ours, key)
		_, reason := reasons[key]
		if before != now && !reason {
			found = append(found, fmt.Sprintf("%s is %s under the agent's own driver and %s under ours", key, before, now))
		}
		if before == now && reason {
			found = append(found, key+" is the same now: take it from the list")
		}
	}
	return found
}

// A value or a key that differs is found, and so is a reason that has gone.
func TestN1EnvironmentsAreCompared(t *testing.T) {
	base := map[string]string{"A": "1", "B": "2"}
	for _, one := range []struct {
		name          string
		ours, reasons map[string]string
		fails         bool
	}{
		{"the same", map[string]string{"A": "1", "B": "2"}, nil, false},
		{"another value", map[string]string{"A": "1", "B": "3"}, nil, true},
		{"a key less", map[string]string{"A": "1"}, nil, true},
		{"a key more", map[string]string{"A": "1", "B": "2", "C": ""}, nil, true},
		{"a reason", map[string]string{"A": "1", "B": "3"}, map[string]string{"B": "why"}, false},
		{"a reason for nothing", map[string]string{"A": "1", "B": "2"}, map[string]string{"B": "why"}, true},
	} {
		if found := differences(base, one.ours, one.reasons); (len(found) > 0) != one.fails {
			t.Errorf("%s: %q", one.name, found)
		}
	}
}
