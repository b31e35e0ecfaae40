package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
)

// must is the value of a call that succeeds.
func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// TestP1NomadsPackageForGo is a day in the life of a program that is written with Nomad's package: jobs and what follows from them. (P1)
func TestP1NomadsPackageForGo(t *testing.T) {
	us := begin(t)
	client := us.client()
	jobs := client.Jobs()

	leader, err := client.Status().Leader()
	if err != nil || leader == "" {
		t.Fatal(leader, err)
	}
	if region := must[string](t)(client.Agent().Region()); region != "global" {
		t.Errorf("the region is %s", region)
	}
	if regions := must[[]string](t)(client.Regions().List()); !slices.Equal(regions, []string{"global"}) {
		t.Errorf("the regions are %v", regions)
	}
	health := must[*api.AgentHealthResponse](t)(client.Agent().Health())
	if health.Client == nil || !health.Client.Ok || health.Server == nil || !health.Server.Ok {
		t.Errorf("the health is %+v", health)
	}
	if members := must[*api.ServerMembers](t)(client.Agent().Members()); len(members.Members) != 1 {
		t.Errorf("the members are %+v", members)
	}

	// As nomad-pack and Terraform's provider do it: the server parses, plans, registers with the source, and is asked for the outcome.
	source := service("web", `
    count = 2
    update {
      min_healthy_time = "0s"
      healthy_deadline = "30s"
    }
    service {
      name     = "web"
      provider = "nomad"
      tags     = ["blue"]
      port     = 4711
      address  = "127.0.0.1"
    }`, "trap 'echo usr1' USR1; echo started; while :; do sleep 0.1; done")
	job := must[*api.Job](t)(jobs.ParseHCLOpts(&api.JobsParseRequest{JobHCL: source, Canonicalize: true}))
	if _, err := jobs.ParseHCL("job \"x\" {", false); err == nil || !strings.Contains(err.Error(), "1") {
		t.Errorf("half a job is parsed: %v", err)
	}
	counted := must[*api.Job](t)(jobs.ParseHCLOpts(&api.JobsParseRequest{
		JobHCL:    strings.Replace("variable \"n\" {\n  type = number\n}\n"+source, "count = 2", "count = var.n", 1),
		Variables: "n = 7\n", Canonicalize: true,
	}))
	if *counted.TaskGroups[0].Count != 7 {
		t.Errorf("with a variable there are %d", *counted.TaskGroups[0].Count)
	}
	if valid, _, err := jobs.Validate(job, nil); err != nil || len(valid.ValidationErrors) > 0 || !valid.DriverConfigValidated {
		t.Errorf("validated: %+v, %v", valid, err)
	}
	plan, _, err := jobs.Plan(job, true, nil)
	if err != nil || plan.Diff == nil || plan.Diff.Type != "Added" || plan.Annotations.DesiredTGUpdates["g"].Place != 2 {
		t.Fatalf("planned: %+v, %v", plan, err)
	}
	// Events are followed from before it is there.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := client.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicJob: {"web"}, api.TopicDeployment: {"*"}}, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	registered, _, err := jobs.RegisterOpts(job, &api.RegisterOptions{Submission: &api.JobSubmission{Source: source, Format: "hcl2"}}, nil)
	if err != nil || registered.EvalID == "" || registered.JobModifyIndex == 0 {
		t.Fatalf("registered: %+v, %v", registered, err)
	}
	if _, _, err := jobs.EnforceRegister(job, 99_999, nil); err == nil || !strings.Contains(err.Error(), "Enforcing job modify index 99999") {
		t.Errorf("a wrong index is enforced: %v", err)
	}
	submission, _, err := jobs.Submission("web", 0, nil)
	if err != nil || submission.Source != source || submission.Format != "hcl2" {
		t.Errorf("the submission: %+v, %v", submission, err)
	}
	var deployment *api.Deployment
	us.until("the deployment is successful", func() error {
		eval, _, err := client.Evaluations().Info(registered.EvalID, nil)
		if err != nil || eval.Status != "complete" || eval.DeploymentID == "" {
			return fmt.Errorf("%+v, %w", eval, err)
		}
		deployment, _, err = client.Deployments().Info(eval.DeploymentID, nil)
		if err != nil || deployment.Status != "successful" {
			return fmt.Errorf("%+v, %w", deployment, err)
		}
		return nil
	})
	if state := deployment.TaskGroups["g"]; state.DesiredTotal != 2 || state.HealthyAllocs != 2 {
		t.Errorf("the deployment's group: %+v", state)
	}
	topics := map[api.Topic]bool{}
	for len(topics) < 2 {
		select {
		case batch := <-events:
			if batch.Err != nil {
				t.Fatal(batch.Err)
			}
			for _, event := range batch.Events {
				topics[event.Topic] = true
				if event.Topic != api.TopicJob {
					continue
				}
				if of, err := event.Job(); err != nil || *of.ID != "web" {
					t.Errorf("the event is of %v: %v", of, err)
				}
			}
		case <-time.After(patience):
			t.Fatalf("no more events than of %v", topics)
		}
	}
	stubs, meta, err := jobs.Allocations("web", false, nil)
	if err != nil || len(stubs) != 2 || meta.LastIndex == 0 {
		t.Fatal(stubs, meta, err)
	}
	alloc, _, err := client.Allocations().Info(stubs[0].ID, nil)
	if err != nil || *alloc.Job.ID != "web" || alloc.TaskStates["t"].State != "running" || alloc.AllocatedResources.Tasks["t"].Memory.MemoryMB != 32 {
		t.Fatalf("%+v, %v", alloc, err)
	}

	t.Run("tasks", func(t *testing.T) { tasks(t, us, client, alloc) })
	t.Run("versions", func(t *testing.T) { versions(t, us, client, job) })
	t.Run("lists", func(t *testing.T) { lists(t, us, client) })
	t.Run("variables", func(t *testing.T) { variables(t, client) })
	t.Run("services", func(t *testing.T) { services(t, us, client) })
	t.Run("dispatch", func(t *testing.T) { dispatch(t, us, client) })
	t.Run("node", func(t *testing.T) { node(t, client) })

	if _, _, err := jobs.Deregister("web", true, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := jobs.Info("web", nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a purged job: %v", err)
	}
}

// tasks uses what is behind an allocation: commands, signals, files, output, use of resources.
func tasks(t *testing.T, us *ours, client *api.Client, alloc *api.Allocation) {
	var out, bad bytes.Buffer
	sizes := make(chan api.TerminalSize)
	code, err := client.Allocations().Exec(t.Context(), alloc, "t", false, []string{"/bin/sh", "-c", "cat; echo bad >&2; exit 3"},
		strings.NewReader("in\n"), &out, &bad, sizes, nil)
	if err != nil || code != 3 || out.String() != "in\n" || bad.String() != "bad\n" {
		t.Errorf("exec: %d, %q, %q, %v", code, out.String(), bad.String(), err)
	}
	out.Reset()
	code, err = client.Allocations().Exec(t.Context(), alloc, "t", true, []string{"/bin/sh", "-c", "stty size; tty >/dev/null && echo yes"},
		strings.NewReader(""), &out, &bad, sizes, nil)
	if err != nil || code != 0 || !strings.Contains(out.String(), "yes\r\n") {
		t.Errorf("exec on a terminal: %d, %q, %v", code, out.String(), err)
	}
	if err := client.Allocations().Signal(alloc, nil, "t", "SIGUSR1"); err != nil {
		t.Error(err)
	}
	files := client.AllocFS()
	// The output is followed until the answer to the signal is there.
	stop := make(chan struct{})
	frames, errs := files.Logs(alloc, true, "t", "stdout", "start", 0, stop, nil)
	var text strings.Builder
	for !strings.Contains(text.String(), "usr1") {
		select {
		case frame := <-frames:
			text.Write(frame.Data)
		case err := <-errs:
			t.Fatal(err)
		case <-time.After(patience):
			t.Fatalf("the output is %q", text.String())
		}
	}
	close(stop)
	if text.String() != "started\nusr1\n" {
		t.Errorf("the output is %q", text.String())
	}
	listed, _, err := files.List(alloc, "/", nil)
	if err != nil || !slices.ContainsFunc(listed, func(file *api.AllocFileInfo) bool { return file.Name == "t" && file.IsDir }) {
		t.Errorf("files: %v, %v", listed, err)
	}
	path := "alloc/logs/t.stdout.0"
	if stat, _, err := files.Stat(alloc, path, nil); err != nil || stat.Size != int64(text.Len()) || stat.IsDir {
		t.Errorf("a file: %+v, %v", stat, err)
	}
	for _, read := range []struct {
		what, wanted string
		open         func() (io.ReadCloser, error)
	}{
		{"all", text.String(), func() (io.ReadCloser, error) { return files.Cat(alloc, path, nil) }},
		{"a part", "usr1", func() (io.ReadCloser, error) { return files.ReadAt(alloc, path, 8, 4, nil) }},
	} {
		reader, err := read.open()
		if err != nil {
			t.Fatal(read.what, err)
		}
		got, err := io.ReadAll(reader)
		reader.Close()
		if err != nil || string(got) != read.wanted {
			t.Errorf("%s: %q, %v", read.what, got, err)
		}
	}
	if _, _, err := files.Stat(alloc, "../../../etc/passwd", nil); err == nil {
		t.Error("a path leads out of the allocation")
	}
	stats, err := client.Allocations().Stats(alloc, nil)
	if err != nil || stats.Tasks["t"] == nil || stats.Tasks["t"].ResourceUsage.MemoryStats.RSS == 0 {
		t.Errorf("the use of resources: %+v, %v", stats, err)
	}
	if err := client.Allocations().Restart(alloc, "t", nil); err != nil {
		t.Error(err)
	}
	us.until("it has been restarted", func() error {
		again, _, err := client.Allocations().Info(alloc.ID, nil)
		if err == nil && (again.TaskStates["t"].Restarts != 1 || again.TaskStates["t"].State != "running") {
			err = fmt.Errorf("%+v", again.TaskStates["t"])
		}
		return err
	})
	if _, _, err := client.Allocations().Info("00000000-0000-0000-0000-000000000000", nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("an allocation that is not there: %v", err)
	}
}

// versions changes a job: in place, back, in number, by a tag.
func versions(t *testing.T, us *ours, client *api.Client, job *api.Job) {
	jobs := client.Jobs()
	job.SetMeta("colour", "green")
	if _, _, err := jobs.Register(job, nil); err != nil {
		t.Fatal(err)
	}
	us.until("the second version is stable", func() error {
		of, _, err := jobs.Info("web", nil)
		if err == nil && (*of.Version != 1 || !*of.Stable) {
			err = fmt.Errorf("version %d, stable: %v", *of.Version, *of.Stable)
		}
		return err
	})
	if _, err := jobs.TagVersion("web", 0, "first", "as it began", nil); err != nil {
		t.Fatal(err)
	}
	all, diffs, _, err := jobs.Versions("web", true, nil)
	if err != nil || len(all) != 2 || len(diffs) != 1 || diffs[0].Type != "Edited" || all[1].VersionTag.Name != "first" {
		t.Fatalf("versions: %d, %+v, %v", len(all), diffs, err)
	}
	if tagged, _, err := jobs.VersionByTag("web", "first", nil); err != nil || *tagged.Version != 0 {
		t.Errorf("by its tag: %+v, %v", tagged, err)
	}
	if _, err := jobs.UntagVersion("web", "first", nil); err != nil {
		t.Error(err)
	}
	if back, _, err := jobs.Revert("web", 0, nil, nil, "", ""); err != nil || back.EvalID == "" {
		t.Errorf("reverted: %+v, %v", back, err)
	}
	us.until("the third version is deployed", func() error {
		deployment, _, err := jobs.LatestDeployment("web", nil)
		if err == nil && (deployment.JobVersion != 2 || deployment.Status != "successful") {
			err = fmt.Errorf("version %d, %s", deployment.JobVersion, deployment.Status)
		}
		return err
	})
	count := 1
	if _, _, err := jobs.Scale("web", "g", &count, "less", false, nil, nil); err != nil {
		t.Fatal(err)
	}
	us.until("there is one", func() error {
		scale, _, err := jobs.ScaleStatus("web", nil)
		if err == nil && (scale.TaskGroups["g"].Desired != 1 || scale.TaskGroups["g"].Running != 1 || len(scale.TaskGroups["g"].Events) != 1) {
			err = fmt.Errorf("%+v", scale.TaskGroups["g"])
		}
		return err
	})
	us.until("one runs", func() error {
		summary, _, err := jobs.Summary("web", nil)
		if err == nil && summary.Summary["g"].Running != 1 {
			err = fmt.Errorf("%+v", summary.Summary["g"])
		}
		return err
	})
	if deployments, _, err := jobs.Deployments("web", true, nil); err != nil || len(deployments) == 0 {
		t.Errorf("the deployments: %v, %v", deployments, err)
	}
	if evals, _, err := jobs.Evaluations("web", nil); err != nil || len(evals) < 3 {
		t.Errorf("the evaluations: %v, %v", evals, err)
	}
	if eval, _, err := jobs.ForceEvaluate("web", nil); err != nil || eval == "" {
		t.Errorf("evaluated: %s, %v", eval, err)
	}
}

// lists are filtered, by pages, searched, and wait for what is new.
func lists(t *testing.T, us *ours, client *api.Client) {
	for _, name := range []string{"list-a", "list-b", "list-c"} {
		us.run(client, service(name, "", "exec sleep 600"))
	}
	jobs := client.Jobs()
	first, meta, err := jobs.List(&api.QueryOptions{Prefix: "list-", PerPage: 2})
	if err != nil || len(first) != 2 || meta.NextToken == "" {
		t.Fatal(first, meta, err)
	}
	second, meta, err := jobs.List(&api.QueryOptions{Prefix: "list-", PerPage: 2, NextToken: meta.NextToken})
	if err != nil || len(second) != 1 || second[0].ID != "list-c" || meta.NextToken != "" {
		t.Errorf("the second page: %v, %v, %v", second, meta, err)
	}
	filtered, _, err := jobs.List(&api.QueryOptions{Filter: `ID contains "-b" and Status == "running"`})
	if err != nil || len(filtered) != 1 || filtered[0].ID != "list-b" {
		t.Errorf("filtered: %v, %v", filtered, err)
	}
	if _, _, err := jobs.List(&api.QueryOptions{Filter: `ID ===`}); err == nil {
		t.Error("half a filter is a filter")
	}
	found, _, err := client.Search().PrefixSearch("list-", contexts.Jobs, nil)
	if err != nil || len(found.Matches[contexts.Jobs]) != 3 {
		t.Errorf("searched: %+v, %v", found, err)
	}
	fuzzy, _, err := client.Search().FuzzySearch("st-b", contexts.Jobs, nil)
	if err != nil || len(fuzzy.Matches[contexts.Jobs]) != 1 {
		t.Errorf("searched for a part: %+v, %v", fuzzy, err)
	}
	// A question for what is newer than what is known is answered as soon as there is something.
	_, meta, err = jobs.List(&api.QueryOptions{Prefix: "list-"})
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		index uint64
		err   error
	}
	answered := make(chan answer)
	go func() {
		_, later, err := jobs.List(&api.QueryOptions{Prefix: "list-", WaitIndex: meta.LastIndex, WaitTime: patience})
		if err != nil {
			answered <- answer{err: err}
			return
		}
		answered <- answer{index: later.LastIndex}
	}()
	for _, name := range []string{"list-a", "list-b", "list-c"} {
		if _, _, err := jobs.Deregister(name, true, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-answered; got.err != nil || got.index <= meta.LastIndex {
		t.Errorf("the index %d follows %d: %v", got.index, meta.LastIndex, got.err)
	}
	var statuses []struct{ ID string }
	if _, err := client.Raw().Query("/v1/jobs/statuses", &statuses, nil); err != nil || len(statuses) != 1 || statuses[0].ID != "web" {
		t.Errorf("what the web interface begins with: %v, %v", statuses, err)
	}
	if namespaces, _, err := client.Namespaces().List(nil); err != nil || len(namespaces) != 1 || namespaces[0].Name != "default" {
		t.Errorf("namespaces: %v, %v", namespaces, err)
	}
	if _, err := client.Namespaces().Register(&api.Namespace{Name: "other"}, nil); err != nil {
		t.Error(err)
	}
	if other, _, err := client.Namespaces().Info("other", nil); err != nil || other.Name != "other" {
		t.Errorf("a namespace: %+v, %v", other, err)
	}
	if _, err := client.Namespaces().Delete("other", nil); err != nil {
		t.Error(err)
	}
	if pools, _, err := client.NodePools().List(nil); err != nil || len(pools) == 0 {
		t.Errorf("node pools: %v, %v", pools, err)
	}
	if err := client.System().GarbageCollect(); err != nil {
		t.Error(err)
	}
	if err := client.System().ReconcileSummaries(); err != nil {
		t.Error(err)
	}
}

// variables are made, changed by who knows them, and deleted.
func variables(t *testing.T, client *api.Client) {
	all := client.Variables()
	made, _, err := all.Create(&api.Variable{Path: "nomad/jobs/web", Items: api.VariableItems{"k": "v"}}, nil)
	if err != nil || made.ModifyIndex == 0 {
		t.Fatal(made, err)
	}
	if read, _, err := all.Read("nomad/jobs/web", nil); err != nil || read.Items["k"] != "v" {
		t.Errorf("read: %+v, %v", read, err)
	}
	stale := *made
	made.Items["k"] = "w"
	if _, _, err := all.CheckedUpdate(made, nil); err != nil {
		t.Error(err)
	}
	_, _, err = all.CheckedUpdate(&stale, nil)
	var conflict api.ErrCASConflict
	if !errors.As(err, &conflict) || conflict.Conflict.Items["k"] != "w" {
		t.Errorf("a change of what is not known any more: %v", err)
	}
	if listed, _, err := all.PrefixList("nomad/jobs", nil); err != nil || len(listed) != 1 || listed[0].Path != "nomad/jobs/web" {
		t.Errorf("listed: %v, %v", listed, err)
	}
	if _, err := all.Delete("nomad/jobs/web", nil); err != nil {
		t.Error(err)
	}
	if _, _, err := all.Read("nomad/jobs/web", nil); !errors.Is(err, api.ErrVariablePathNotFound) {
		t.Errorf("read after its end: %v", err)
	}
}

// services are found by name and by job.
func services(t *testing.T, us *ours, client *api.Client) {
	us.until("the service is listed", func() error {
		listed, _, err := client.Services().List(nil)
		if err == nil && (len(listed) != 1 || len(listed[0].Services) != 1 || listed[0].Services[0].ServiceName != "web") {
			err = fmt.Errorf("%+v", listed)
		}
		return err
	})
	instances, _, err := client.Services().Get("web", nil)
	if err != nil || len(instances) != 1 || instances[0].Port != 4711 || instances[0].JobID != "web" || !slices.Equal(instances[0].Tags, []string{"blue"}) {
		t.Fatalf("instances: %+v, %v", instances, err)
	}
	if ofJob, _, err := client.Jobs().Services("web", nil); err != nil || len(ofJob) != 1 {
		t.Errorf("of the job: %v, %v", ofJob, err)
	}
	if ofAlloc, _, err := client.Allocations().Services(instances[0].AllocID, nil); err != nil || len(ofAlloc) != 1 {
		t.Errorf("of the allocation: %v, %v", ofAlloc, err)
	}
	if _, err := client.Services().Delete("web", instances[0].ID, nil); err != nil {
		t.Error(err)
	}
}

// dispatch starts a parameterized job with a payload, and forces a periodic one.
func dispatch(t *testing.T, us *ours, client *api.Client) {
	jobs := client.Jobs()
	parse := must[*api.Job](t)
	batch := func(name, block, rest string) *api.Job {
		return parse(jobs.ParseHCL(fmt.Sprintf(`
job %q {
  type = "batch"
  %s
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "cat local/in 2>/dev/null; echo $NOMAD_META_who"]
      }
      %s
    }
  }
}`, name, block, rest), true))
	}
	if _, _, err := jobs.Register(batch("param", `parameterized {
    payload       = "required"
    meta_required = ["who"]
  }`, `dispatch_payload {
        file = "in"
      }`), nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := jobs.Dispatch("param", nil, []byte("x"), "", nil); err == nil || !strings.Contains(err.Error(), "who") {
		t.Errorf("without what it wants: %v", err)
	}
	child, _, err := jobs.Dispatch("param", map[string]string{"who": "me"}, []byte("from afar\n"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	alloc := us.allocation(client, child.DispatchedJobID, "complete")
	reader, err := client.AllocFS().Cat(alloc, "alloc/logs/t.stdout.0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if text, err := io.ReadAll(reader); err != nil || string(text) != "from afar\nme\n" {
		t.Errorf("it wrote %q, %v", text, err)
	}
	if _, _, err := jobs.Register(batch("cron", `periodic {
    crons = ["0 0 1 1 *"]
  }`, ""), nil); err != nil {
		t.Fatal(err)
	}
	if eval, _, err := jobs.PeriodicForce("cron", nil); err != nil || eval == "" {
		t.Errorf("forced: %s, %v", eval, err)
	}
	us.until("the child has ended", func() error {
		children, _, err := jobs.PrefixList("cron/periodic-")
		if err == nil && (len(children) != 1 || children[0].Status != "dead" || children[0].ParentID != "cron") {
			err = fmt.Errorf("%+v", children)
		}
		return err
	})
}

// node is this machine: its resources, its use, whether it takes what is new.
func node(t *testing.T, client *api.Client) {
	nodes, _, err := client.Nodes().List(nil)
	if err != nil || len(nodes) != 1 || nodes[0].Status != "ready" || !nodes[0].Drivers["raw_exec"].Healthy {
		t.Fatalf("%+v, %v", nodes, err)
	}
	id := nodes[0].ID
	info, _, err := client.Nodes().Info(id, nil)
	if err != nil || info.NodeResources.Cpu.CpuShares == 0 || info.NodeResources.Memory.MemoryMB == 0 || info.Attributes["kernel.name"] != "linux" {
		t.Errorf("%+v, %v", info, err)
	}
	if allocs, _, err := client.Nodes().Allocations(id, nil); err != nil || len(allocs) == 0 {
		t.Errorf("its allocations: %v, %v", allocs, err)
	}
	if stats, err := client.Nodes().Stats(id, nil); err != nil || stats.Memory.Total == 0 || len(stats.CPU) == 0 {
		t.Errorf("its use: %+v, %v", stats, err)
	}
	for _, eligible := range []bool{false, true} {
		if _, err := client.Nodes().ToggleEligibility(id, eligible, nil); err != nil {
			t.Error(err)
		}
		info, _, err := client.Nodes().Info(id, nil)
		if err != nil || (info.SchedulingEligibility == "eligible") != eligible {
			t.Errorf("eligible: %s, %v", info.SchedulingEligibility, err)
		}
	}
	if settings, _, err := client.Operator().SchedulerGetConfiguration(nil); err != nil || settings.SchedulerConfig == nil {
		t.Errorf("the scheduler's settings: %+v, %v", settings, err)
	}
}
