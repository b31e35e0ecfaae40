// Package agent runs a real Nomad agent, server and client in one, in a world of its own: PID, mount and network
// namespaces that end with the program, so that nothing of a run is left on the machine. It never knows which tests
// or measurements are made.
package agent

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

const stage = "AGENTBIN_NOMAD_STAGE"

// Enter starts this program again in namespaces of its own and returns there; in the first process it never returns.
//
// Process 1 of the new PID namespace only reaps: what outlives a killed agent becomes its child, and an agent that
// reattaches takes a zombie for a living process.
func Enter() {
	switch os.Getenv(stage) {
	case "inside":
		return
	case "init":
		os.Exit(reap())
	}
	if os.Geteuid() != 0 {
		return
	}
	before := nomadCgroups()
	command := again("init")
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	// The terminal's signals reach the tests themselves; this process only hands their end on.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	err := command.Run()
	removeCgroups(before)
	if err != nil && command.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "nomad tests: namespaces:", err)
		os.Exit(1)
	}
	os.Exit(status(command.ProcessState.Sys().(syscall.WaitStatus)))
}

// Inside tells whether this process is in namespaces of its own. Without root it is not.
func Inside() bool { return os.Getenv(stage) == "inside" }

func again(next string) *exec.Cmd {
	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Args[0] = os.Args[0]
	command.Env = append(os.Environ(), stage+"="+next)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return command
}

func status(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// reap is process 1: it prepares the namespaces, starts the program and waits for it and for everybody's orphans.
func reap() int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	for _, step := range [][]string{
		{"mount", "-t", "proc", "proc", "/proc"},
		{"ip", "link", "set", "lo", "up"},
		// An agent wants an interface with an address and a route. Both ends stay here.
		{"ip", "link", "add", "name", "eth0", "type", "veth", "peer", "name", "far"},
		{"ip", "address", "add", "198.51.100.1/24", "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
		{"ip", "link", "set", "far", "up"},
		{"ip", "route", "add", "default", "via", "198.51.100.2"},
	} {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "nomad tests: %s: %v: %s\n", strings.Join(step, " "), err, out)
			return 1
		}
	}
	command := again("inside")
	if err := command.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "nomad tests:", err)
		return 1
	}
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, 0, nil)
		if err == nil && pid == command.Process.Pid && (s.Exited() || s.Signaled()) {
			return status(s)
		}
	}
}

// nomadCgroups are the parents that an agent may make, as they are now.
func nomadCgroups() map[string]bool {
	found := map[string]bool{}
	for _, pattern := range []string{"/sys/fs/cgroup/nomad*", "/sys/fs/cgroup/*/nomad*"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			found[path] = true
		}
	}
	return found
}

// removeCgroups removes what came since; a cgroup that somebody uses stays, the kernel sees to that.
func removeCgroups(before map[string]bool) {
	for path := range nomadCgroups() {
		if !before[path] {
			removeTree(path)
		}
	}
}

func removeTree(path string) {
	entries, _ := os.ReadDir(path)
	for _, entry := range entries {
		if entry.IsDir() {
			removeTree(filepath.Join(path, entry.Name()))
		}
	}
	syscall.Rmdir(path) //nolint:errcheck // in use, or gone
}
