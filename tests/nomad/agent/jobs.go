package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Alloc is what the API tells of an allocation, as far as it is used here.
type Alloc struct {
	ID, Name, JobID, TaskGroup, ClientStatus, DesiredStatus string
	TaskStates                                              map[string]TaskState
}

// TaskState is one task's state.
type TaskState struct {
	State    string
	Failed   bool
	Restarts int
	Events   []TaskEvent
}

// TaskEvent is one line of a task's history. Time is in nanoseconds since 1970.
type TaskEvent struct {
	Type, DisplayMessage string
	Time                 int64
	Details              map[string]string
}

// Event finds the first event of a type.
func (s TaskState) Event(kind string) (TaskEvent, bool) {
	for _, event := range s.Events {
		if event.Type == kind {
			return event, true
		}
	}
	return TaskEvent{}, false
}

// Submit registers a job from its text and returns at once.
func (a *Agent) Submit(name, text string) error {
	path := filepath.Join(a.Dir, name+".nomad.hcl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	_, err := a.Run("job", "run", "-detach", path)
	return err
}

// Allocs are a job's allocations.
func (a *Agent) Allocs(job string) ([]Alloc, error) {
	var allocs []Alloc
	err := a.Get("/v1/job/"+job+"/allocations?task_states=true", &allocs)
	return allocs, err
}

// WaitJob waits until a job has so many allocations in a client status, and returns these.
func (a *Agent) WaitJob(job, status string, count int) ([]Alloc, error) {
	var allocs, matching []Alloc
	var problem error
	over := false
	err := Eventually(fmt.Sprintf("%d %s of %s", count, status, job), func() bool {
		allocs, problem = a.Allocs(job)
		matching, over = nil, false
		for _, alloc := range allocs {
			if alloc.ClientStatus == status {
				matching = append(matching, alloc)
			} else if alloc.ClientStatus != "pending" && alloc.ClientStatus != "running" {
				over = true
			}
		}
		return over || len(matching) >= count
	})
	if err == nil && len(matching) < count {
		err = fmt.Errorf("an allocation of %s that was to be %s ended otherwise", job, status)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %v\n%s", err, problem, Describe(allocs))
	}
	return matching, nil
}

// Describe tells what happened to allocations, for a failure's message.
func Describe(allocs []Alloc) string {
	text := ""
	for _, alloc := range allocs {
		text += fmt.Sprintf("%s %s (desired %s)\n", alloc.Name, alloc.ClientStatus, alloc.DesiredStatus)
		for name, state := range alloc.TaskStates {
			text += fmt.Sprintf("  %s: %s, %d restarts\n", name, state.State, state.Restarts)
			for _, event := range state.Events {
				at := time.Unix(0, event.Time).UTC().Format("15:04:05.000")
				text += fmt.Sprintf("    %s %s: %s\n", at, event.Type, event.DisplayMessage)
			}
		}
	}
	return text
}

// StopJob stops a job, waits for the end of its allocations and has the agent forget and remove them.
func (a *Agent) StopJob(job string) error {
	if _, err := a.Run("job", "stop", "-purge", "-yes", "-detach", job); err != nil {
		return err
	}
	return Eventually("the allocations of "+job+" end", func() bool {
		allocs, err := a.Allocs(job)
		if err != nil {
			return false
		}
		for _, alloc := range allocs {
			if alloc.ClientStatus == "running" || alloc.ClientStatus == "pending" {
				return false
			}
		}
		return true
	})
}
