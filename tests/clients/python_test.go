package clients

import (
	"os"
	"os/exec"
	"testing"
)

// TestP1PythonNomad runs a program of python-nomad; scripts/test says where that package is. (P1)
func TestP1PythonNomad(t *testing.T) {
	packages := os.Getenv("PYTHON_NOMAD")
	if packages == "" {
		t.Fatal("PYTHON_NOMAD must be a directory into which pip has installed requirements.txt")
	}
	us := begin(t)
	command := exec.CommandContext(t.Context(), "python3", "python_nomad.py")
	command.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1",
		"NOMAD_ADDR="+us.url(""), "NOMAD_TOKEN="+us.token)
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
