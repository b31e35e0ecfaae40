package nomad

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"agentbin.test/nomad/agent"
)

// scenario is what is done to a job, and what there is when nothing happens any more. src/agent/schedule/differential.rs
// does the same to our scheduler.
type scenario struct {
	Name  string
	Steps []struct {
		Register  *wantedJob
		StopAlloc string `json:"stop_alloc"`
		Promote   bool
		Stop      bool
		Evaluate  bool
		Shows     map[string]any
	}
}

// wantedJob is a job in few words; differential.rs says what they mean.
type wantedJob struct {
	Type        string
	Counts      map[string]int
	Value       string
	KillTimeout int64 `json:"kill_timeout"`
	Task        string
	Canary      int
	MaxParallel int  `json:"max_parallel"`
	AutoPromote bool `json:"auto_promote"`
	AutoRevert  bool `json:"auto_revert"`
	Manual      bool
	Kernel      string
}

type object = map[string]any

const second = int64(time.Second)

func (w *wantedJob) job(id string) object {
	script := map[string]string{"": "exec sleep 1000", "end": "exit 0", "fail": "exit 1"}[w.Task]
	health := "task_states"
	if w.Manual {
		health = "manual"
	}
	groups := []object{}
	for _, name := range slices.Sorted(maps.Keys(w.Counts)) {
		group := object{
			"Name": name, "Count": w.Counts[name],
			"RestartPolicy": object{"Attempts": 0, "Mode": "fail", "Interval": 60 * second, "Delay": second},
			"Tasks": []object{{
				"Name": "t", "Driver": "raw_exec",
				"Config":      object{"command": "/bin/sh", "args": []string{"-c", script}},
				"Env":         object{"X": w.Value, "TASK": w.Task},
				"KillTimeout": max(1, w.KillTimeout) * second,
				"Resources":   object{"CPU": 20, "MemoryMB": 20},
			}},
		}
		if w.Type == "service" || w.Type == "batch" {
			group["ReschedulePolicy"] = object{
				"Attempts": 0, "Unlimited": false, "Interval": 60 * second, "Delay": 5 * second,
				"DelayFunction": "constant", "MaxDelay": 0,
			}
		}
		if w.Type == "service" || w.Type == "system" {
			healthyAfter := second / 2
			if w.Task == "fail" {
				healthyAfter = 10 * second // it fails at once, but the agent may hear of that later
			}
			group["Update"] = object{
				"MaxParallel": max(1, w.MaxParallel), "HealthCheck": health, "MinHealthyTime": healthyAfter,
				"HealthyDeadline": 20 * second, "ProgressDeadline": 0, "AutoRevert": w.AutoRevert,
				"AutoPromote": w.AutoPromote, "Canary": w.Canary,
			}
		}
		groups = append(groups, group)
	}
	job := object{"ID": id, "Name": id, "Type": w.Type, "Datacenters": []string{"*"}, "TaskGroups": groups}
	if w.Kernel != "" {
		job["Constraints"] = []object{{"LTarget": "${attr.kernel.name}", "Operand": "=", "RTarget": w.Kernel}}
	}
	return job
}

// ask writes to the agent's API, and answers the id of the evaluation that follows.
func ask(a *agent.Agent, method, path string, body any) (string, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	request, err := http.NewRequest(method, a.URL()+path, bytes.NewReader(text))
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: agent.Patience}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	var answer struct{ EvalID string }
	err = json.NewDecoder(response.Body).Decode(&answer)
	return answer.EvalID, err
}

// send is an ask that must succeed.
func sendTo(t *testing.T, a *agent.Agent, method, path string, body any) string {
	t.Helper()
	eval, err := ask(a, method, path, body)
	must(t, err)
	return eval
}

// shown is what there is of a job, in few words, as differential.rs has it.
func shown(t *testing.T, a *agent.Agent, id, eval string) map[string]any {
	t.Helper()
	var allocs []struct {
		Name, DesiredStatus, ClientStatus, DesiredDescription string
		JobVersion                                            int
	}
	must(t, a.Get("/v1/job/"+id+"/allocations?all=true", &allocs))
	lines := []string{}
	for _, alloc := range allocs {
		name := "web" + strings.TrimPrefix(alloc.Name, id)
		line := fmt.Sprintf("%s v%d %s %s %s", name, alloc.JobVersion, alloc.DesiredStatus, alloc.ClientStatus,
			alloc.DesiredDescription)
		lines = append(lines, strings.TrimRight(line, " "))
	}
	var deployments []struct {
		JobVersion                int
		Status, StatusDescription string
	}
	must(t, a.Get("/v1/job/"+id+"/deployments?all=true", &deployments))
	ways := []string{}
	for _, d := range deployments {
		ways = append(ways, fmt.Sprintf("v%d %s: %s", d.JobVersion, d.Status, d.StatusDescription))
	}
	var versions struct {
		Versions []struct {
			Version int
			Stable  bool
		}
	}
	must(t, a.Get("/v1/job/"+id+"/versions", &versions))
	stable := make([]bool, len(versions.Versions))
	for _, version := range versions.Versions {
		stable[version.Version] = version.Stable
	}
	slices.Sort(lines)
	slices.Sort(ways)
	found := object{"allocs": lines, "deployments": ways, "stable": stable}
	if eval != "" {
		var decided struct {
			PlanAnnotations   struct{ DesiredTGUpdates map[string]map[string]int }
			QueuedAllocations map[string]int
			BlockedEval       string
		}
		must(t, a.Get("/v1/evaluation/"+eval, &decided))
		for _, numbers := range decided.PlanAnnotations.DesiredTGUpdates {
			maps.DeleteFunc(numbers, func(_ string, number int) bool { return number == 0 })
		}
		found["desired"] = decided.PlanAnnotations.DesiredTGUpdates
		found["queued"] = decided.QueuedAllocations
		found["blocked"] = decided.BlockedEval != ""
	}
	text, err := json.Marshal(found)
	must(t, err)
	var plain map[string]any
	must(t, json.Unmarshal(text, &plain))
	return plain
}

// TestJ6DecisionsAreThoseOfOurScheduler shows J6: the scenarios that our scheduler is held to are what a real agent does.
func TestJ6DecisionsAreThoseOfOurScheduler(t *testing.T) {
	needsItsRelease(t)
	a := plain(t)
	text, err := os.ReadFile("testdata/schedule.json")
	must(t, err)
	var scenarios []scenario
	must(t, json.Unmarshal(text, &scenarios))
	if len(scenarios) < 30 {
		t.Fatalf("%d scenarios", len(scenarios))
	}
	for number, scenario := range scenarios {
		id := fmt.Sprintf("scenario-%d", number)
		for at, step := range scenario.Steps {
			eval := ""
			switch {
			case step.Register != nil:
				eval = sendTo(t, a, http.MethodPut, "/v1/jobs", object{"Job": step.Register.job(id)})
			case step.StopAlloc != "":
				allocs, err := a.Allocs(id)
				must(t, err)
				for _, alloc := range allocs {
					if "web"+strings.TrimPrefix(alloc.Name, id) == step.StopAlloc && alloc.DesiredStatus == "run" {
						eval = sendTo(t, a, http.MethodPut, "/v1/allocation/"+alloc.ID+"/stop", object{})
					}
				}
			case step.Stop:
				eval = sendTo(t, a, http.MethodDelete, "/v1/job/"+id, nil)
			case step.Evaluate:
				eval = sendTo(t, a, http.MethodPut, "/v1/job/"+id+"/evaluate", object{"JobID": id})
			case step.Promote:
				var deployment struct{ ID string }
				must(t, a.Get("/v1/job/"+id+"/deployment", &deployment))
				body := object{"DeploymentID": deployment.ID, "All": true}
				eventually(t, "the canaries are healthy and promoted", func() bool {
					_, err := ask(a, http.MethodPut, "/v1/deployment/promote/"+deployment.ID, body)
					return err == nil
				})
			}
			var found map[string]any
			what := fmt.Sprintf("%s, step %d", scenario.Name, at+1)
			err := agent.Eventually(what, func() bool {
				found = shown(t, a, id, eval)
				return reflect.DeepEqual(found, step.Shows)
			})
			if err != nil {
				t.Errorf("%v\nthere is %v\nand not  %v", err, found, step.Shows)
			}
		}
		sendTo(t, a, http.MethodDelete, "/v1/job/"+id+"?purge=true", nil)
	}
}
