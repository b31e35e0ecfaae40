package nomad

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentbin.test/nomad/agent"
)

// docFile is a file that docs/driver-authors.md shows as what cat prints.
func docFile(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "driver-authors.md"))
	must(t, err)
	_, text, found := strings.Cut(string(page), " cat "+name+"\n")
	if !found {
		t.Fatalf("docs/driver-authors.md does not show %s", name)
	}
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "# ") || strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "```") {
			break
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// The driver that the docs let their reader write runs a job of an agent. (N7)
func TestN7ADriverWrittenFromTheDocs(t *testing.T) {
	needsRoot(t)
	program := os.Getenv("AGENTBIN_TEMPLATE")
	if program == "" {
		t.Skipf("SKIP: %s: AGENTBIN_TEMPLATE names no driver; scripts/test nomad sets it", t.Name())
	}
	block := docFile(t, "agent.hcl")
	a := other(t, agent.Config{Others: map[string]string{"nomad-driver-greet": program}, Blocks: block})
	must(t, a.Submit("greet", docFile(t, "greet.nomad.hcl")))
	allocs, err := a.WaitJob("greet", "complete", 1)
	must(t, err)
	logged(t, a, allocs[0].ID, "greets", `^Good morning, world!$`)
}
