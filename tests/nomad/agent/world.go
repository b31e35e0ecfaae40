// Package agent runs a real Nomad agent, server and client in one, in a world of its own: PID, mount, network and, on
// cgroup v1, cgroup namespaces that end with the program, so that nothing of a run is left on the machine and several
// can run side by side. It never knows which tests or measurements are made.
package agent

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
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
		if err := ownHierarchies(); err != nil {
			fmt.Fprintln(os.Stderr, "nomad tests: cgroups:", err)
			os.Exit(1)
		}
		return
	case "init":
		os.Exit(reap())
	}
	if os.Geteuid() != 0 {
		return
	}
	before := nomadCgroups()
	part := fmt.Sprintf("agentbin-tests-%d", os.Getpid())
	parts, err := makeParts(part)
	if err != nil {
		removeAll(parts)
		fmt.Fprintln(os.Stderr, "nomad tests: cgroups:", err)
		os.Exit(1)
	}
	command := again("init")
	command.Env = append(command.Env, partName+"="+part)
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	// The terminal's signals reach the tests themselves; this process only hands their end on.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	err = command.Run()
	removeAll(parts)
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
	part := os.Getenv(partName)
	for _, one := range hierarchies() {
		if err := os.WriteFile(filepath.Join(one.dir, part, "cgroup.procs"), []byte("0"), 0); err != nil {
			fmt.Fprintln(os.Stderr, "nomad tests:", err)
			return 1
		}
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWCGROUP}
	}
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

// partName is the variable with the name of this run's cgroup in each hierarchy.
const partName = "AGENTBIN_NOMAD_CGROUP"

// hierarchy is a mounted tree of cgroups.
type hierarchy struct {
	dir, kind, options string
}

// hierarchies are those of cgroup v1, and that of v2 beside them; none where there is only v2, in which a cgroup with processes
// cannot be the root of others that have limits.
func hierarchies() []hierarchy {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var found []hierarchy
	isV1 := false
	for line := range strings.Lines(string(text)) {
		place, rest, _ := strings.Cut(line, " - ")
		mount, system := strings.Fields(place), strings.Fields(rest)
		if len(mount) < 5 || len(system) < 3 || !strings.HasPrefix(system[0], "cgroup") {
			continue
		}
		one := hierarchy{dir: mount[4], kind: system[0]}
		if one.kind == "cgroup" {
			isV1 = true
			// What names the tree, without what says how it is mounted.
			options := slices.DeleteFunc(strings.Split(system[2], ","), func(option string) bool {
				return slices.Contains([]string{"rw", "ro", "xattr", "clone_children"}, option) || strings.HasPrefix(option, "release_agent=")
			})
			if strings.HasPrefix(options[0], "name=") {
				options = append([]string{"none"}, options...)
			}
			one.options = strings.Join(options, ",")
		}
		found = append(found, one)
	}
	if !isV1 {
		return nil
	}
	return found
}

// makeParts makes this run's cgroup in each hierarchy, with all processors and memory.
func makeParts(name string) ([]string, error) {
	var made []string
	for _, one := range hierarchies() {
		path := filepath.Join(one.dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			return made, err
		}
		made = append(made, path)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if text, err := os.ReadFile(filepath.Join(one.dir, file)); err == nil {
				if err := os.WriteFile(filepath.Join(path, file), text, 0); err != nil {
					return made, err
				}
			}
		}
	}
	return made, nil
}

// ownHierarchies mounts the hierarchies once more, so that their roots are those of this process's cgroup namespace: two agents
// of one machine would write the same files of the cgroup `nomad`.
func ownHierarchies() error {
	for _, one := range hierarchies() {
		// Go's runtime keeps files of the cpu controller open.
		if err := syscall.Unmount(one.dir, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", one.dir, err)
		}
		if err := syscall.Mount(one.kind, one.dir, one.kind, 0, one.options); err != nil {
			return fmt.Errorf("%s: %w", one.dir, err)
		}
	}
	return nil
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

func removeAll(paths []string) {
	for _, path := range paths {
		removeTree(path)
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
