package nomad

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"

	"agentbin.test/nomad/agent"
)

// Files that both commands turn into the API's JSON.
const forms = "../jobs-form"

// TestJ1JobRunOutput compares what `agentbin validate --output-json` prints with what `nomad job run -output` prints. Nothing in
// these files is made up at each call, so nothing is replaced before.
func TestJ1JobRunOutput(t *testing.T) {
	ours, real := setting(t, "AGENTBIN"), setting(t, "NOMAD")
	version, err := exec.Command(real, "version").Output()
	must(t, err)
	older := !strings.Contains(string(version), "v1.11.")
	files, err := filepath.Glob(filepath.Join(forms, "*.nomad.*"))
	must(t, err)
	compared := 0
	for _, file := range files {
		var theirs, found any
		out, err := exec.Command(real, "job", "run", "-output", file).Output()
		if err != nil && older {
			continue // it has a block that the release before did not know
		}
		must(t, err)
		must(t, json.Unmarshal(out, &theirs))
		out, err = exec.Command(ours, "validate", "--output-json", file).Output()
		must(t, err)
		must(t, json.Unmarshal(out, &found))
		if older {
			found = reduced(found, theirs)
		}
		if !reflect.DeepEqual(theirs, found) {
			t.Errorf("%s: not what %s prints", file, strings.TrimSpace(string(version)))
		}
		compared++
	}
	if compared < 80 || !older && compared < 100 {
		t.Errorf("only %d files were compared", compared)
	}
}

// reduced is a value without the members that the other one does not have and that say nothing.
func reduced(value, other any) any {
	switch value := value.(type) {
	case map[string]any:
		other, _ := other.(map[string]any)
		out := map[string]any{}
		for name, member := range value {
			theirs, known := other[name]
			nothing := member == nil || member == "" || member == false || member == 0.0
			if known || !nothing {
				out[name] = reduced(member, theirs)
			}
		}
		return out
	case []any:
		other, _ := other.([]any)
		out := make([]any, len(value))
		for i, item := range value {
			var theirs any
			if i < len(other) {
				theirs = other[i]
			}
			out[i] = reduced(item, theirs)
		}
		return out
	}
	return value
}

type plans struct {
	Bases map[string]map[string]any
	Plans []struct {
		Name, Base string
		Set        map[string]any
		Change     *string
		Diff       any
	}
}

// TestJ2PlansAreARealAgents asks a real agent for each plan that src/jobspec/tests/api_form.rs compares with ours.
func TestJ2PlansAreARealAgents(t *testing.T) {
	needsRoot(t)
	needsItsRelease(t)
	file, err := os.ReadFile(filepath.Join(forms, "plans.json"))
	must(t, err)
	var recorded plans
	must(t, json.Unmarshal(file, &recorded))
	volume := t.TempDir()
	a := onStock(t, agent.Config{Client: fmt.Sprintf(`
  meta {
    rack = "r1"
  }
  host_volume "s" {
    path = %q
  }
  host_volume "s2" {
    path = %q
  }
  host_network "other" {
    cidr = "127.0.0.0/8"
  }`, volume, volume)})
	for _, base := range recorded.Bases {
		send(t, "/v1/jobs", map[string]any{"Job": base})
	}
	_, err = a.WaitJob("chg", "running", 1)
	must(t, err)
	for _, plan := range recorded.Plans {
		if plan.Base == "scaled" {
			continue // the server gives its policy an id some time later, and shows that as a change
		}
		base := recorded.Bases[plan.Base]
		job := clone(t, base)
		for at, value := range plan.Set {
			set(job, at, value)
		}
		answer := send(t, "/v1/job/"+plan.Base+"/plan", map[string]any{"Job": job, "Diff": true})
		diff := withoutImplied(answer["Diff"], fmt.Sprint(base, job))
		if found, wanted := text(t, ordered(diff)), text(t, ordered(plan.Diff)); found != wanted {
			t.Errorf("%s: found    %s\n wanted %s", plan.Name, found, wanted)
		}
		if plan.Change != nil {
			if found := change(answer); found != *plan.Change {
				t.Errorf("%s: %s, not %s", plan.Name, found, *plan.Change)
			}
		}
	}
	stop(t, a, "chg", "rich", "scaled")
}

// change is what becomes of the running allocation of group g.
func change(answer map[string]any) string {
	updates := answer["Annotations"].(map[string]any)["DesiredTGUpdates"].(map[string]any)["g"].(map[string]any)
	for _, word := range []struct{ name, means string }{
		{"DestructiveUpdate", "Destructive"}, {"InPlaceUpdate", "InPlace"}, {"Ignore", "None"},
	} {
		if updates[word.name].(float64) > 0 {
			return word.means
		}
	}
	return ""
}

func send(t *testing.T, path string, body any) map[string]any {
	t.Helper()
	request, err := http.NewRequest(http.MethodPut, "http://127.0.0.1:4646"+path, strings.NewReader(text(t, body)))
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, answer)
	}
	var out map[string]any
	must(t, json.Unmarshal(answer, &out))
	return out
}

func text(t *testing.T, value any) string {
	t.Helper()
	out, err := json.Marshal(value)
	must(t, err)
	return string(out)
}

func clone(t *testing.T, value map[string]any) map[string]any {
	t.Helper()
	var out map[string]any
	must(t, json.Unmarshal([]byte(text(t, value)), &out))
	return out
}

// set gives the member that a JSON pointer names another value.
func set(value any, at string, to any) {
	parts := strings.Split(at, "/")[1:]
	for i, part := range parts {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		last := i == len(parts)-1
		switch owner := value.(type) {
		case map[string]any:
			if last {
				owner[part] = to
			}
			value = owner[part]
		case []any:
			var index int
			fmt.Sscan(part, &index) //nolint:errcheck // an index of the file
			if last {
				owner[index] = to
			}
			value = owner[index]
		}
	}
}

// withoutImplied leaves out the constraints that a server adds for what a job needs by implication.
func withoutImplied(value any, given string) any {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			value[name] = withoutImplied(member, given)
		}
		objects, _ := value["Objects"].([]any)
		kept := []any{}
		for _, object := range objects {
			if !implied(object.(map[string]any), given) {
				kept = append(kept, object)
			}
		}
		if len(objects) > 0 {
			value["Objects"] = kept
			if len(kept) == 0 {
				value["Objects"] = nil
			}
		}
		if _, group := value["Tasks"]; group {
			value["Updates"] = nil // how many allocations there are is the scheduler's
		}
	case []any:
		for i, item := range value {
			value[i] = withoutImplied(item, given)
		}
	}
	return value
}

func implied(object map[string]any, given string) bool {
	fields, _ := object["Fields"].([]any)
	if object["Name"] != "Constraint" {
		return false
	}
	for _, field := range fields {
		field := field.(map[string]any)
		target := field["New"].(string) + field["Old"].(string)
		if field["Name"] == "LTarget" && strings.HasPrefix(target, "${attr.") && !strings.Contains(given, target) {
			return true
		}
	}
	return false
}

// ordered drops nulls, and orders objects of one name, which stand in the order of a Go map.
func ordered(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, member := range value {
			if member != nil {
				out[name] = ordered(member)
			}
		}
		if objects, ok := out["Objects"].([]any); ok {
			sort.SliceStable(objects, func(i, j int) bool { return key(objects[i]) < key(objects[j]) })
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i, item := range value {
			out[i] = ordered(item)
		}
		return out
	}
	return value
}

func key(object any) string {
	text, _ := json.Marshal(object) //nolint:errcheck // it came as JSON
	return fmt.Sprint(object.(map[string]any)["Name"], string(text))
}
