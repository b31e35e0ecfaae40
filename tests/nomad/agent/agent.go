package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Patience is the longest that anything here may take.
const Patience = 90 * time.Second

const address = "http://127.0.0.1:4646"

// always are the drivers that agentbin is in the plugin folder, by file name; docker is one where there is an engine.
var always = []string{"exec", "raw_exec", "java"}

// Config says what the agent is started with.
type Config struct {
	// Nomad is the agent's program, which is the command line too.
	Nomad string
	// Agentbin is what lies in the plugin folder as one file for each driver; empty: the agent's own drivers.
	Agentbin string
	// Copies puts copies of it there instead of symbolic links.
	Copies bool
	// PluginConfig has what is added to the drivers' plugin blocks, by driver.
	PluginConfig map[string]string
	// Others are further plugins: programs by the names of their files.
	Others map[string]string
	// Blocks is added to the configuration.
	Blocks string
	// Client is added to the client block.
	Client string
	// Engine is the address of a Docker Engine; with it, agentbin is the driver docker, too.
	Engine string
	// Env is added to the agent's environment, as KEY=value.
	Env []string
	// Cgroup is a cgroup's folder that the agent is started in; empty: the caller's.
	Cgroup string
	// Dir is the agent's own folder. Short, because sockets lie below it, and passable for every user.
	Dir string
}

// Agent is one agent with its folder; it can be stopped, killed and started again.
type Agent struct {
	Config
	process *exec.Cmd
	ended   chan struct{}
}

// CNIDirs are the directories in which CNI plugins may be installed, those that there are: an agent of 1.10 looks for none after the
// first that is missing.
func CNIDirs() []string {
	var found []string
	for _, dir := range []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"} {
		if _, err := os.Stat(dir); err == nil {
			found = append(found, dir)
		}
	}
	return found
}

// New writes the configuration.
func New(config Config) (*Agent, error) {
	a := &Agent{Config: config}
	plugins := filepath.Join(a.Dir, "plugins")
	for _, dir := range []string{plugins, a.dataDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if a.Agentbin != "" {
		if err := a.Install(); err != nil {
			return nil, err
		}
	}
	for name, program := range a.Others {
		if err := os.Symlink(program, filepath.Join(plugins, name)); err != nil {
			return nil, err
		}
	}
	blocks := ""
	for _, driver := range a.drivers() {
		own := a.PluginConfig[driver]
		if driver == "raw_exec" {
			own = "enabled = true\n" + own
		}
		if driver == "docker" {
			own = fmt.Sprintf("endpoint = %q\ninfra_image = %q\n", a.Engine, PauseImage) + own
		}
		blocks += fmt.Sprintf("plugin %q {\n  config {\n%s\n  }\n}\n", driver, own)
	}
	text := fmt.Sprintf(`
data_dir   = %q
plugin_dir = %q
bind_addr  = "127.0.0.1"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
log_level  = "DEBUG"
disable_update_check = true
telemetry {
  collection_interval        = "1s"
  publish_allocation_metrics = true
}
server {
  enabled          = true
  bootstrap_expect = 1
  # Every five minutes it takes deployments away that have ended, if nothing runs of them; they are looked at after that.
  deployment_gc_threshold = "876000h"
}
client {
  enabled           = true
  servers           = ["127.0.0.1:4647"]
  network_interface = "eth0"
  cni_path          = %q
  # What ends is looked at after its end; a disk that a build has filled is not a reason to take it away before.
  gc_disk_usage_threshold  = 100
  gc_inode_usage_threshold = 100
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,cloud,consul,vault"
  }
  %s
}
%s%s`, a.dataDir(), plugins, strings.Join(CNIDirs(), ":"), a.Client, blocks, a.Blocks)
	return a, os.WriteFile(filepath.Join(a.Dir, "agent.hcl"), []byte(text), 0o644)
}

// Install puts agentbin into the plugin folder; the agent sees it when it starts.
func (a *Agent) Install() error {
	for _, name := range a.drivers() {
		if err := a.install(filepath.Join(a.Dir, "plugins", name)); err != nil {
			return err
		}
	}
	return nil
}

// Remove takes it out of there.
func (a *Agent) Remove() error {
	for _, name := range a.drivers() {
		if err := os.Remove(filepath.Join(a.Dir, "plugins", name)); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) install(path string) error {
	if !a.Copies {
		return os.Symlink(a.Agentbin, path)
	}
	from, err := os.Open(a.Agentbin)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		return err
	}
	return to.Close()
}

func (a *Agent) drivers() []string {
	if a.Engine == "" {
		return always
	}
	return append(slices.Clone(always), "docker")
}

func (a *Agent) dataDir() string { return filepath.Join(a.Dir, "data") }

// AllocDir is where the agent keeps an allocation.
func (a *Agent) AllocDir(alloc string) string { return filepath.Join(a.dataDir(), "alloc", alloc) }

// Pid is the agent's process.
func (a *Agent) Pid() int { return a.process.Process.Pid }

// Start starts the agent and waits until its node is ready and the drivers are healthy.
func (a *Agent) Start() error {
	log, err := os.OpenFile(a.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command := []string{a.Nomad, "agent", "-config", filepath.Join(a.Dir, "agent.hcl")}
	if a.Cgroup != "" {
		join := []string{"/bin/sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, a.Cgroup}
		command = append(join, command...)
	}
	a.process = exec.Command(command[0], command[1:]...)
	a.process.Stdout, a.process.Stderr = log, log
	a.process.Env = append(os.Environ(), a.Env...)
	// Its own session: what a killed agent leaves behind is nobody's process group.
	a.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := a.process.Start(); err != nil {
		return err
	}
	ended, process := make(chan struct{}), a.process
	a.ended = ended
	go func() { process.Wait(); close(ended) }() //nolint:errcheck // tests end it in every way
	return a.ready()
}

func (a *Agent) ready() error {
	last, over := "", false
	err := Eventually("the agent's node is ready with its drivers", func() bool {
		select {
		case <-a.ended:
			last, over = "the agent ended", true
			return true
		default:
		}
		var nodes []struct {
			ID, Status string
			Drivers    map[string]struct {
				Healthy           bool
				HealthDescription string
			}
		}
		if err := a.Get("/v1/nodes", &nodes); err != nil {
			last = err.Error()
			return false
		}
		last = fmt.Sprintf("%+v", nodes)
		return len(nodes) == 1 && nodes[0].Status == "ready" && nodes[0].Drivers["exec"].Healthy &&
			nodes[0].Drivers["raw_exec"].Healthy && (a.Engine == "" || nodes[0].Drivers["docker"].Healthy)
	})
	if over {
		err = errors.New("no agent")
	}
	if err != nil {
		return fmt.Errorf("%w (%s); the agent's log ends with:\n%s", err, last, a.LogTail(60))
	}
	return nil
}

// Kill ends the agent with SIGKILL and waits for its end.
func (a *Agent) Kill() {
	a.process.Process.Kill() //nolint:errcheck // it may be gone
	<-a.ended
}

// Stop asks the agent to end, as a service manager does, once it hears that: it begins to answer requests before it handles
// signals, and in our world it ignores this one until then.
func (a *Agent) Stop() error {
	err := Eventually("the agent handles signals", func() bool {
		select {
		case <-a.ended:
			return true
		default:
			return a.handles(syscall.SIGINT)
		}
	})
	if err != nil {
		return err
	}
	if err := a.process.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-a.ended:
		return nil
	case <-time.After(Patience):
		a.Kill()
		return fmt.Errorf("the agent did not end within %v", Patience)
	}
}

func (a *Agent) logPath() string { return filepath.Join(a.Dir, "agent.log") }

// Log is everything that the agent has logged.
func (a *Agent) Log() string {
	text, _ := os.ReadFile(a.logPath())
	return string(text)
}

// handles tells whether the agent's process has a handler for a signal.
func (a *Agent) handles(signal syscall.Signal) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.Pid()))
	_, rest, _ := strings.Cut(string(text), "\nSigCgt:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	caught, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && caught&(1<<(signal-1)) != 0
}

// LogTail is the last lines of it.
func (a *Agent) LogTail(lines int) string {
	var all []string
	for line := range strings.Lines(a.Log()) {
		if !strings.Contains(line, "http: request complete") { // what waiting here makes
			all = append(all, strings.TrimRight(line, "\n"))
		}
	}
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// LogOf is the end of what the agent and its plugins have logged with a word, such as the id of an allocation.
func (a *Agent) LogOf(word string, lines int) string {
	var found []string
	for line := range strings.Lines(a.Log()) {
		if strings.Contains(line, word) && !strings.Contains(line, "http: request complete") {
			found = append(found, strings.TrimRight(line, "\n"))
		}
	}
	return strings.Join(found[max(0, len(found)-lines):], "\n")
}

// Command is a call of the real command line.
func (a *Agent) Command(arguments ...string) *exec.Cmd {
	command := exec.Command(a.Nomad, arguments...)
	// What the person who runs this has set for a cluster is not for this agent.
	command.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "NOMAD_") })
	command.Env = append(command.Env, "NOMAD_ADDR="+address, "NOMAD_CLI_NO_COLOR=1")
	return command
}

// Run calls the command line and returns what it printed to stdout. A status other than 0 is an error with both
// outputs in it.
func (a *Agent) Run(arguments ...string) (string, error) {
	command := a.Command(arguments...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := within(command); err != nil {
		return stdout.String(), fmt.Errorf("nomad %s: %w\n%s%s", strings.Join(arguments, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// within runs a command and ends it when it takes too long.
func within(command *exec.Cmd) error {
	if err := command.Start(); err != nil {
		return err
	}
	timer := time.AfterFunc(Patience, func() { command.Process.Kill() }) //nolint:errcheck // it may be gone
	defer timer.Stop()
	return command.Wait()
}

// URL is where the agent's HTTP API is.
func (a *Agent) URL() string { return address }

// Get reads the agent's HTTP API into a value.
func (a *Agent) Get(path string, into any) error {
	client := http.Client{Timeout: Patience}
	response, err := client.Get(address + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, text)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// Eventually waits for a condition that nothing announces.
func Eventually(what string, ok func() bool) error {
	deadline := time.Now().Add(Patience)
	for !ok() {
		if time.Now().After(deadline) {
			return fmt.Errorf("never happened: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}
