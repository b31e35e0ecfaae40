package agent

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is one process of this PID namespace.
type Process struct {
	Pid, Parent int
	// Command is its argument list.
	Command []string
	// Exe is the file it runs, empty for a zombie.
	Exe string
	// Cgroups are the paths of its cgroups, one a hierarchy.
	Cgroups []string
}

// String describes it for who has to find out why a test failed.
func (p Process) String() string {
	return fmt.Sprintf("process %d, child of %d: %.200q in %q, waits in %s", p.Pid, p.Parent, p.Command, p.Cgroups, p.WaitsIn())
}

// Is tells whether a word is among its arguments.
func (p Process) Is(word string) bool {
	for _, argument := range p.Command {
		if argument == word {
			return true
		}
	}
	return false
}

// Processes lists everybody in this PID namespace.
func Processes() []Process {
	entries, _ := os.ReadDir("/proc")
	var found []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, ok := read(pid); ok {
			found = append(found, p)
		}
	}
	return found
}

func read(pid int) (Process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || len(command) == 0 {
		return Process{}, false // gone, a zombie
	}
	p := Process{Pid: pid, Command: strings.Split(strings.TrimRight(string(command), "\x00"), "\x00")}
	p.Exe, _ = os.Readlink(filepath.Join(dir, "exe"))
	stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
	if _, rest, ok := bytes.Cut(stat, []byte(") ")); ok {
		if fields := strings.Fields(string(rest)); len(fields) > 1 {
			p.Parent, _ = strconv.Atoi(fields[1])
		}
	}
	cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	for line := range strings.Lines(string(cgroups)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			p.Cgroups = append(p.Cgroups, parts[2])
		}
	}
	return p, true
}

// WaitsIn is the state of the process and the kernel's function that it waits in.
func (p Process) WaitsIn() string {
	dir := filepath.Join("/proc", strconv.Itoa(p.Pid))
	where, _ := os.ReadFile(filepath.Join(dir, "wchan"))
	stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
	_, state, _ := bytes.Cut(stat, []byte(") "))
	return string(state[:min(len(state), 1)]) + " " + string(where)
}

// Memory is what /proc/PID/smaps_rollup says, in KiB.
type Memory struct {
	PSS, RSS, Private int
}

// Add adds another process's memory.
func (m *Memory) Add(other Memory) {
	m.PSS += other.PSS
	m.RSS += other.RSS
	m.Private += other.Private
}

// Memory reads the process's memory; zero when it is gone.
func (p Process) Memory() Memory {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.Pid), "smaps_rollup"))
	var m Memory
	scanner := bufio.NewScanner(bytes.NewReader(text))
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.Atoi(fields[1])
		switch fields[0] {
		case "Pss:":
			m.PSS = kib
		case "Rss:":
			m.RSS = kib
		case "Private_Clean:", "Private_Dirty:":
			m.Private += kib
		}
	}
	return m
}

// Mounts are the mount points of this mount namespace below a folder.
func Mounts(below string) []string {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], below) {
			found = append(found, fields[4])
		}
	}
	return found
}

// CgroupsOf are the cgroups with a word in their name.
func CgroupsOf(word string) []string {
	var found []string
	filepath.WalkDir("/sys/fs/cgroup", func(path string, entry os.DirEntry, err error) error { //nolint:errcheck // what is there
		if err == nil && entry.IsDir() && strings.Contains(entry.Name(), word) {
			found = append(found, path)
		}
		return nil
	})
	return found
}
