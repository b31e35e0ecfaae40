package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Images that an engine has from the start: a busybox, and what holds the network of an allocation.
const (
	Image      = "busybox:test"
	PauseImage = "pause:test"
)

// Engine is a Docker Engine with folders of its own. It ends with the namespaces, at the latest.
type Engine struct {
	dir     string
	process *exec.Cmd
	ended   chan struct{}
}

// StartEngine starts it below a folder with a short name, and imports the images.
func StartEngine(dir string) (*Engine, error) {
	e := &Engine{dir: dir}
	if err := e.Start(); err != nil {
		return nil, err
	}
	tar := filepath.Join(dir, "image.tar")
	if err := writeBusybox(dir, tar); err != nil {
		return nil, err
	}
	defer os.Remove(tar) //nolint:errcheck // the folder goes with the run
	if _, err := e.Docker("import", tar, Image); err != nil {
		return nil, err
	}
	_, err := e.Docker("import", "-c", `ENTRYPOINT ["/bin/sleep", "1000000"]`, tar, PauseImage)
	return e, err
}

// Endpoint is its address, as drivers and command line know it.
func (e *Engine) Endpoint() string { return "unix://" + filepath.Join(e.dir, "sock") }

// Start starts it and waits until it answers.
func (e *Engine) Start() error {
	log, err := os.OpenFile(filepath.Join(e.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	path := func(name string) string { return filepath.Join(e.dir, name) }
	e.process = exec.Command("dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false", "--live-restore",
		"--data-root", path("data"), "--exec-root", path("exec"), "--pidfile", path("pid"), "--host", e.Endpoint())
	e.process.Stdout, e.process.Stderr = log, log
	e.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := e.process.Start(); err != nil {
		return err
	}
	process, ended := e.process, make(chan struct{})
	e.ended = ended
	go func() { process.Wait(); close(ended) }() //nolint:errcheck // tests end it in every way
	over := false
	err = Eventually("the engine answers", func() bool {
		select {
		case <-ended:
			over = true
			return true
		default:
		}
		_, err := e.Docker("version")
		return err == nil
	})
	if over {
		err = errors.New("no engine")
	}
	if err != nil {
		text, _ := os.ReadFile(path("log"))
		return fmt.Errorf("%w; its log ends with:\n%s", err, text[max(0, len(text)-2000):])
	}
	return nil
}

// Stop asks it to end. With its option --live-restore containers go on.
func (e *Engine) Stop() error {
	if err := e.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-e.ended:
		return nil
	case <-time.After(Patience):
		e.process.Process.Kill() //nolint:errcheck // it may be gone
		<-e.ended
		return errors.New("the engine did not end when it was asked")
	}
}

// Docker calls its command line and returns what it printed.
func (e *Engine) Docker(arguments ...string) (string, error) {
	command := exec.Command("docker", append([]string{"-H", e.Endpoint()}, arguments...)...)
	var out strings.Builder
	command.Stdout, command.Stderr = &out, &out
	if err := within(command); err != nil {
		return out.String(), fmt.Errorf("docker %s: %w: %s", strings.Join(arguments, " "), err, &out)
	}
	return strings.TrimSpace(out.String()), nil
}

// Containers are the names of its containers that have a label, whatever their state.
func (e *Engine) Containers(label string) ([]string, error) {
	out, err := e.Docker("ps", "-a", "--filter", "label="+label, "--format", "{{.Names}}")
	return strings.Fields(out), err
}

// writeBusybox makes a root of one static program, as tar.
func writeBusybox(dir, tar string) error {
	root, err := os.MkdirTemp(dir, "root")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root) //nolint:errcheck // the folder goes with the run
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	for _, step := range [][]string{
		{"sh", "-c", "mkdir bin dev etc proc sys tmp root && echo root:x:0:0:root:/root:/bin/sh > etc/passwd && echo nobody:x:65534:65534:nobody:/:/bin/sh >> etc/passwd"},
		{"cp", busybox, "bin/busybox"},
		{"sh", "-c", "for name in sh sleep echo cat true ls tr head httpd wget stty ip readlink test env grep id nproc sort stat; do ln -s busybox bin/$name; done"},
		{"tar", "-cf", tar, "."},
	} {
		command := exec.Command(step[0], step[1:]...)
		command.Dir = root
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", step[0], err, out)
		}
	}
	return nil
}
