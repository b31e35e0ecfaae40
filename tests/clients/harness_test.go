// Package clients lets programs of other projects speak to agentbin's agent as they speak to Nomad's.
package clients

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// patience is how long anything may take on a busy machine.
const patience = 60 * time.Second

// ours is an agent of agentbin that listens on TCP, where each request needs a token.
type ours struct {
	t       *testing.T
	socket  string
	address string
	// token has the role manage.
	token string
}

// agentbin is the path of the program under test.
func agentbin(t *testing.T) string {
	t.Helper()
	path := os.Getenv("AGENTBIN")
	if path == "" {
		t.Fatal("AGENTBIN must be the path of agentbin")
	}
	return path
}

func begin(t *testing.T) *ours {
	t.Helper()
	dir, err := os.MkdirTemp("", "clients")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	us := &ours{t: t, socket: filepath.Join(dir, "sock"), address: address}
	// Its jobs end with it.
	command := exec.Command(agentbin(t), "agent", "--dev", "--data-dir", filepath.Join(dir, "data"),
		"--listen", "unix://"+us.socket, "--listen", "tcp://"+address)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		command.Wait()                          //nolint:errcheck // the status of SIGTERM
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the agent's log:\n%s", text[max(0, len(text)-4000):])
		}
	})
	us.until("the agent listens", func() error {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		connection.Close()
		token, err := os.ReadFile(filepath.Join(dir, "data", "token"))
		us.token = strings.TrimSpace(string(token))
		return err
	})
	return us
}

// until asks again until there is no error.
func (us *ours) until(what string, ask func() error) {
	us.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			us.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// url is a path of the API.
func (us *ours) url(path string) string { return "http://" + us.address + path }

// newToken makes a token of a role.
func (us *ours) newToken(role string) string {
	us.t.Helper()
	command := exec.Command(agentbin(us.t), "token", "create", "--socket", us.socket, "--role", role)
	var said bytes.Buffer
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		us.t.Fatalf("%v: %s", err, said.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// client is Nomad's own package for Go.
func (us *ours) client() *api.Client {
	us.t.Helper()
	client, err := api.NewClient(&api.Config{Address: us.url(""), SecretID: us.token})
	if err != nil {
		us.t.Fatal(err)
	}
	return client
}

// run registers a job and returns its only allocation as soon as it runs.
func (us *ours) run(client *api.Client, hcl string) *api.Allocation {
	us.t.Helper()
	job, err := client.Jobs().ParseHCL(hcl, true)
	if err != nil {
		us.t.Fatal(err)
	}
	if _, _, err := client.Jobs().Register(job, nil); err != nil {
		us.t.Fatal(err)
	}
	return us.allocation(client, *job.ID, "running")
}

// allocation is the only allocation of a job, as soon as it has this status.
func (us *ours) allocation(client *api.Client, job, status string) *api.Allocation {
	us.t.Helper()
	var found *api.Allocation
	us.until(job+" is "+status, func() error {
		stubs, _, err := client.Jobs().Allocations(job, false, nil)
		if err != nil {
			return err
		}
		if len(stubs) != 1 || stubs[0].ClientStatus != status {
			return fmt.Errorf("%d allocations, not one that is %s", len(stubs), status)
		}
		found, _, err = client.Allocations().Info(stubs[0].ID, nil)
		return err
	})
	return found
}

// service is a job that waits until it is ended, with something in a group and in its task.
func service(name, group, script string) string {
	return fmt.Sprintf(`
job %q {
  type = "service"
  group "g" {
    %s
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      kill_timeout = "1s"
      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
`, name, group, script)
}
