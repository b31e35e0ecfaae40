package nomad

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// kind is one kind of jobs, and what is done to it.
type kind struct {
	name string
	// drivers that it is run with; nil: every one that runs a shell, shells.
	drivers []string
	// script is what the shell of the task web runs; task has more of that task.
	script string
	task   task
	// others are further tasks; group and header are added to the blocks of the group and the job.
	others        []task
	group, header string
	// schedule is the job's type; empty: batch, or service where there is an act.
	schedule string
	// network is the group's own: the tasks of docker are in it.
	network bool
	// before prepares, act does something to what runs; without it, the job ends by itself.
	before, act func(*one)
	// needs says what the machine has to have.
	needs func() bool
}

var (
	shells  = []string{"exec", "raw_exec", "docker"}
	every   = []string{"exec", "raw_exec", "java", "docker"}
	ownRoot = []string{"exec", "docker"}
	onHost  = []string{"exec", "raw_exec"}
)

const (
	// ready is a service that says what it is sent.
	ready = `trap 'echo got USR1' USR1; trap 'echo got USR2' USR2; trap 'echo got TERM; exit 0' TERM; trap 'echo got INT; exit 0' INT
echo ready; while :; do sleep 0.1; done`
	// fills takes so many MiB as a text that it doubles, and says that it could.
	fills = `x=0123456789abcdef0123456789abcdef; n=0; while [ $n -lt %d ]; do x=$x$x; n=$((n+1)); done; echo "survived"`
)

// trialKinds is the trial. Each is run under the agent's own drivers and under ours.
func trialKinds() []kind {
	return []kind{
		// How a task ends.
		{name: "batch", drivers: every, script: `echo "hello from $NOMAD_TASK_NAME"; echo oops >&2; sleep 1`},
		{name: "exit 3", drivers: every, script: `echo failing; sleep 1; exit 3`},
		{name: "child killed by a signal", script: `sh -c 'kill -TERM $$'; echo "status $?"; sh -c 'kill -KILL $$'; exit $?`},
		{name: "killed from outside", drivers: every, script: ready, act: func(o *one) {
			o.signal(o.started(), "SIGKILL")
			o.ended(1)
		}},
		{name: "ended by a signal", script: ready, act: func(o *one) {
			o.signal(o.started(), "SIGTERM")
			o.ended(1)
		}},
		{name: "out of memory", drivers: ownRoot, script: fmt.Sprintf(fills, 22), task: task{resources: "cpu = 50\n memory = 32"}},
		{name: "memory_max", drivers: ownRoot, script: fmt.Sprintf(fills, 20), task: task{resources: "cpu = 50\n memory = 24\n memory_max = 256"}},
		{name: "command missing", task: task{program: `command = "/no/such/program"`}},
		{name: "command not executable", task: task{program: `command = "/etc/passwd"`}},
		{name: "command is a directory", task: task{program: `command = "/etc"`}},
		{name: "script without x", drivers: onHost, task: task{program: `command = "local/run.sh"`, more: ownScript("644")}},
		{name: "script with x", task: task{program: `command = "${NOMAD_TASK_DIR}/run.sh"`, more: ownScript("755")}},
		{name: "interpreter missing", drivers: onHost, task: task{program: `command = "local/run.sh"`,
			more: "template {\n data = \"#!/no/such/shell\\n\"\n destination = \"local/run.sh\"\n perms = \"755\"\n}"}},
		{name: "no command", task: task{program: ` `}},
		{name: "unknown key", task: task{config: `no_such_key = 1`}, script: "true"},

		// What a task is given.
		{name: "env", drivers: every, script: `env | grep -E '^(A|B|C|EMPTY|UNI)=' | sort | while read -r line; do echo "fact env: $line"; done; sleep 1`,
			task: task{more: `
      env {
        A     = "one"
        B     = "x=y  z"
        C     = "$HOME"
        EMPTY = ""
        UNI   = "grün"
      }`}},
		{name: "arguments", task: task{program: `command = "/bin/sh"
        args = ["-c", "for a in \"$@\"; do echo \"<$a>\"; done; sleep 1", "sh", ` + references + `]`,
			more: "meta {\n color = \"blue\"\n}"}},
		{name: "arguments of java", drivers: []string{"java"}, task: task{class: "App", config: `args = ["arguments", ` + references + `]`,
			more: "meta {\n color = \"blue\"\n}"}},
		{name: "meta", drivers: every, script: `env | grep NOMAD_META | sort; sleep 1`, header: "meta {\n level = \"job\"\n job_s = \"yes\"\n}",
			group: "meta {\n level = \"group\"\n with-dash = \"x\"\n}", task: task{more: "meta {\n level = \"task\"\n}"}},
		{name: "user", script: `id -u; id -g; id -G; echo x > $NOMAD_TASK_DIR/x; stat -c '%a %u:%g' $NOMAD_TASK_DIR/x; sleep 1`,
			task: task{more: `user = "nobody"`}},
		{name: "user unknown", script: `id -u`, task: task{more: `user = "no-such-user"`}},
		{name: "user by number", script: `id -u; id -g; sleep 1`, task: task{more: `user = "65534"`}},
		{name: "work_dir", drivers: every, script: `pwd; sleep 1`, task: task{config: `work_dir = "/tmp"`}},
		{name: "work_dir missing", drivers: onHost, script: `pwd`, task: task{config: `work_dir = "/no/such/directory"`}},
		{name: "no work_dir", drivers: ownRoot, script: `echo "fact directory: $(pwd)"; sleep 1`},
		{name: "process", script: `
echo "fact umask: $(umask)"
echo "fact open files: $(ulimit -n)"
echo "fact signals: $(grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status | tr '\n' ' ')"
echo "fact OOM score: $(cat /proc/self/oom_score_adj)"
echo "fact descriptors: $(ls /proc/self/fd | tr '\n' ' ')"
echo "fact stdin: $(readlink /proc/self/fd/0)"
echo "fact terminal: $(test -t 1; echo $?)"
echo "fact first process: $([ $$ = 1 ]; echo $?)"
sleep 1`},
		{name: "limits", script: `
echo "fact processes: $(ulimit -u)"
echo "fact locked: $(ulimit -l)"
echo "fact core: $(ulimit -c)"
sleep 1`},
		{name: "privileges", script: `
grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t' ' ' | sed 's/^/fact /'; sleep 1`},
		{name: "privileges of a user", script: `
grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t' ' ' | sed 's/^/fact /'; sleep 1`,
			task: task{more: `user = "nobody"`}},
		{name: "directories", script: `
for d in $NOMAD_ALLOC_DIR $NOMAD_ALLOC_DIR/data $NOMAD_ALLOC_DIR/tmp $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR /tmp; do
  [ -w $d ]; w=$?
  case $d in $NOMAD_ALLOC_DIR) n=alloc;; $NOMAD_TASK_DIR) n=local;; $NOMAD_SECRETS_DIR) n=secrets;; */data) n=data;; */alloc/tmp) n=shared tmp;; *) n=$d;; esac
  echo "fact $n: $(stat -c '%a %u:%g' $d), writable $w"
done; sleep 1`},
		{name: "devices", drivers: ownRoot, script: `echo "fact devices: $(ls /dev | tr '\n' ' ')"; sleep 1`},
		{name: "host name", script: `echo "fact name: $(cat /proc/sys/kernel/hostname | wc -c)"; sleep 1`},
		{name: "cores", script: `echo "fact processors: $(nproc)"; echo "fact variable: $(env | grep NOMAD_CPU_CORES | tr 0-9 N)"; sleep 1`,
			task: task{resources: "cores = 1\n memory = 64"}},
		{name: "identity", drivers: every, script: `[ -n "$NOMAD_TOKEN" ] && echo has token; ls $NOMAD_SECRETS_DIR; sleep 1`,
			task: task{more: "identity {\n env = true\n file = true\n}"}},
		{name: "host volume", script: `cat /data/given; echo "from $NOMAD_JOB_NAME" > /data/$NOMAD_JOB_NAME && cat /data/$NOMAD_JOB_NAME; sleep 1`,
			group: "volume \"data\" {\n type = \"host\"\n source = \"data\"\n}",
			task:  task{more: "volume_mount {\n volume = \"data\"\n destination = \"/data\"\n}"}},
		{name: "host volume read-only", drivers: ownRoot, script: `cat /data/given; echo x > /data/$NOMAD_JOB_NAME; echo "status $?"; sleep 1`,
			group: "volume \"data\" {\n type = \"host\"\n source = \"fixed\"\n read_only = true\n}",
			task:  task{more: "volume_mount {\n volume = \"data\"\n destination = \"/data\"\n}"}},
		{name: "pid_mode host", drivers: []string{"exec"}, script: `[ $$ = 1 ]; echo "fact first process: $?"; sleep 1`,
			task: task{config: `pid_mode = "host"`}},
		{name: "cap_add", drivers: []string{"exec"}, script: `grep CapEff /proc/self/status | sed 's/^/fact /'; sleep 1`,
			task: task{config: `cap_add = ["net_bind_service"]`, more: `user = "nobody"`}},
		{name: "cap_add refused", drivers: []string{"exec"}, script: `true`, task: task{config: `cap_add = ["sys_admin"]`}},

		// Files from elsewhere.
		{name: "artifacts", script: `cd $NOMAD_TASK_DIR; for f in tree/tree/program tree/tree/below/file named.txt; do stat -c '%n %a %s %u:%g' $f; done
cat named.txt tree/tree/below/file; ./tree/tree/program x; sleep 1`, task: task{more: artifact("tree.tar.gz", `destination = "local/tree"`) +
			artifact("plain.txt", "destination = \"local/named.txt\"\n mode = \"file\"")}},
		{name: "artifact missing", script: "true", task: task{more: artifact("nothing", `destination = "local/x"`)}},
		{name: "artifact with a wrong checksum", drivers: onHost, script: "true", task: task{more: artifact("plain.txt",
			"destination = \"local/x\"\n options {\n checksum = \"md5:00000000000000000000000000000000\"\n }")}},
		{name: "dispatch payload", drivers: every, script: `cat $NOMAD_TASK_DIR/input.txt; env | grep NOMAD_META_ | sort; sleep 1`,
			header:   "parameterized {\n payload = \"required\"\n meta_required = [\"who\"]\n meta_optional = [\"why\"]\n}",
			task:     task{more: "dispatch_payload {\n file = \"input.txt\"\n}"},
			schedule: "batch", act: func(o *one) {
				answer, _, err := o.api.Jobs().Dispatch(o.job, map[string]string{"who": "the trial"}, []byte("a payload\n"), "", nil)
				o.must(err)
				o.jobs = []string{answer.DispatchedJobID}
				o.ended(1)
			}},
		{name: "template with change_mode signal", script: ready, before: variable("one"), act: func(o *one) {
			alloc := o.started()
			setVariable(o, "two")
			o.logged(alloc, "web", `^got USR2$`, 1)
			o.exec("after", alloc, false, "", "/bin/cat", o.inTask("local/value"))
		}, task: task{more: ownTemplate("signal", `change_signal = "SIGUSR2"`)}},
		{name: "template with change_mode restart", script: ready, before: variable("one"), act: func(o *one) {
			alloc := o.started()
			setVariable(o, "two")
			o.logged(alloc, "web", `^ready$`, 2)
			o.runsAgain("web")
		}, task: task{more: ownTemplate("restart", "")}},
		{name: "template with change_mode script", script: ready, before: variable("one"), act: func(o *one) {
			alloc := o.started()
			setVariable(o, "two")
			o.logged(alloc, "web", `^got USR1$`, 1)
			o.told("web", "Task hook message")
		}, task: task{more: ownTemplate("script", "change_script {\n command = \"/bin/sh\"\n args = [\"-c\", \"kill -USR1 $(cat $NOMAD_TASK_DIR/pid)\"]\n fail_on_error = true\n}")}},

		// Policies, several tasks, several allocations.
		{name: "kill_signal", script: ready, task: task{more: `kill_signal = "SIGUSR2"`, killTimeout: "1s"}, act: func(o *one) { o.started() }},
		{name: "kill_timeout", script: `trap '' TERM INT; echo ready; while :; do sleep 0.1; done`, task: task{killTimeout: "1s"},
			act: func(o *one) { o.started() }},
		{name: "shutdown_delay", drivers: onHost, script: ready, task: task{more: `shutdown_delay = "1s"`}, act: func(o *one) { o.started() }},
		{name: "restart until it fails", drivers: every, script: `echo again; exit 1`, group: restarting(2)},
		{name: "restart with delay", drivers: onHost, script: `echo again; exit 1`, group: "restart {\n attempts = 1\n interval = \"10m\"\n delay = \"1s\"\n mode = \"delay\"\n}",
			act: func(o *one) {
				o.until("the attempts are used up", func() bool {
					for _, alloc := range o.allocs() {
						if state := alloc.TaskStates["web"]; state != nil && state.Restarts == 2 && state.State == "pending" {
							return true
						}
					}
					return false
				})
			}},
		{name: "reschedule", drivers: onHost, script: `echo again; sleep 1; exit 1`, group: `
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts       = 1
      interval       = "1h"
      delay          = "5s"
      delay_function = "constant"
      unlimited      = false
    }`, schedule: "batch", act: func(o *one) { o.ended(2) }},
		{name: "lifecycle", drivers: shells, script: `echo web >> $NOMAD_ALLOC_DIR/order; sleep 2; echo web ends >> $NOMAD_ALLOC_DIR/order`, others: []task{
			{name: "first", script: `echo first >> $NOMAD_ALLOC_DIR/order`, more: hook("prestart", false)},
			{name: "beside", script: `trap 'exit 0' TERM INT; while :; do sleep 0.1; done`, more: hook("prestart", true)},
			{name: "after-start", script: `echo after start; sleep 1`, more: hook("poststart", false)},
			{name: "last", script: `cat $NOMAD_ALLOC_DIR/order; sleep 1`, more: hook("poststop", false)},
		}},
		{name: "first task fails", drivers: onHost, script: `echo never`, others: []task{
			{name: "first", script: `exit 4`, more: hook("prestart", false)},
		}},
		{name: "leader", drivers: onHost, script: `until [ -e $NOMAD_ALLOC_DIR/data/up ]; do sleep 0.1; done; sleep 1`, task: task{more: "leader = true"}, others: []task{
			{name: "follower", script: `trap 'echo told; exit 0' INT TERM; : > $NOMAD_ALLOC_DIR/data/up; while :; do sleep 0.1; done`},
		}},
		{name: "sibling fails", drivers: onHost, script: `trap 'echo told; exit 0' INT TERM; : > $NOMAD_ALLOC_DIR/data/up; while :; do sleep 0.1; done`, others: []task{
			{name: "failing", script: `until [ -e $NOMAD_ALLOC_DIR/data/up ]; do sleep 0.1; done; sleep 1; exit 5`},
		}},
		{name: "shared directory", drivers: every, script: `until [ -s $NOMAD_ALLOC_DIR/data/answer ]; do sleep 0.1; done; cat $NOMAD_ALLOC_DIR/data/answer; sleep 1`,
			others: []task{{name: "other", script: `echo "answer from $NOMAD_TASK_NAME" > $NOMAD_ALLOC_DIR/data/answer; sleep 1`}}},
		{name: "sysbatch", schedule: "sysbatch", script: `echo once on each node; sleep 1`, act: func(o *one) { o.ended(1) }},
		{name: "system", schedule: "system", script: ready, act: func(o *one) { o.started() }},
		{name: "periodic", drivers: every, schedule: "batch", header: "periodic {\n crons = [\"0 0 1 1 *\"]\n}", script: `echo forced; sleep 1`, act: func(o *one) {
			_, _, err := o.api.Jobs().PeriodicForce(o.job, nil)
			o.must(err)
			o.until("a child is there", func() bool {
				children, _, err := o.api.Jobs().PrefixList(o.job + "/periodic-")
				o.must(err)
				if len(children) == 1 {
					o.jobs = []string{children[0].ID}
				}
				return len(children) == 1
			})
			o.ended(1)
		}},
		{name: "scale", drivers: onHost, script: ready, group: "update {\n max_parallel = 0\n}", act: func(o *one) {
			o.started()
			for _, count := range []int{3, 1} {
				_, _, err := o.api.Jobs().Scale(o.job, "g", &count, "", false, nil, nil)
				o.must(err)
				o.running(count)
				for _, alloc := range o.allocs() {
					o.logged(alloc, "web", `^ready$`, 1)
				}
			}
		}},
		{name: "update", drivers: shells, script: ready, group: "update {\n min_healthy_time = \"1s\"\n}", act: func(o *one) {
			o.started()
			o.submit(strings.Replace(find("update").text(o), "echo ready", "echo version 2; echo ready", 1))
			o.until("the deployment is through", func() bool {
				last, _, err := o.api.Jobs().LatestDeployment(o.job, nil)
				return err == nil && last != nil && last.JobVersion == 1 && last.Status == "successful"
			})
			o.started()
		}},
		{name: "sticky disk", drivers: onHost, script: `[ -e $NOMAD_ALLOC_DIR/data/kept ] && echo kept; echo x > $NOMAD_ALLOC_DIR/data/kept; ` + ready,
			group: "ephemeral_disk {\n sticky = true\n migrate = true\n}", act: func(o *one) {
				o.started()
				o.submit(strings.Replace(find("sticky disk").text(o), "echo ready", "echo second; echo ready", 1))
				o.until("the second runs", func() bool {
					return o.count("complete") == 1 && o.count("running") == 1
				})
				o.started()
			}},

		// Logs.
		{name: "large lines", drivers: every, script: `n=0; while [ $n -lt 10 ]; do head -c 200000 /dev/zero | tr '\000' x; echo " $n"; echo "small $n"
head -c 100000 /dev/zero | tr '\000' e >&2; echo " $n" >&2; n=$((n+1)); done; sleep 1`},
		{name: "no last newline", drivers: every, script: `printf 'first\nno newline'; sleep 1`},
		{name: "bytes", script: `printf 'a\001\377\r\n\tz\n'; sleep 1`},
		{name: "log rotation", script: `head -c 3500000 /dev/zero | tr '\000' x; sleep 2`, task: task{more: "logs {\n max_files = 2\n max_file_size = 1\n}"},
			act: func(o *one) { o.ended(1); o.noteFiles(o.allocs()[0], "alloc/logs") }, schedule: "batch"},
		{name: "logs disabled", script: `echo nobody sees that; sleep 1`, task: task{more: "logs {\n disabled = true\n}"}},
		{name: "output closed", script: `echo before; exec >&- 2>&-; sleep 1; exit 0`},
		{name: "child outlives the task", drivers: onHost, script: `(sleep 100; echo late) & echo done`},
		{name: "logs -f", drivers: every, script: `n=0; while [ $n -lt 20 ]; do echo "line $n"; n=$((n+1)); sleep 0.1; done; sleep 1`, schedule: "batch", act: func(o *one) {
			alloc := o.running(1)[0]
			cancel := make(chan struct{})
			defer close(cancel)
			frames, errs := o.api.AllocFS().Logs(alloc, true, "web", "stdout", "start", 0, cancel, nil)
			text := ""
			for strings.Count(text, "\n") < 20 {
				select {
				case frame := <-frames:
					if frame == nil {
						o.Fatalf("the stream ended after %q", text)
					}
					text += string(frame.Data)
				case err := <-errs:
					o.Fatal(err)
				}
			}
			o.note("followed", text)
			o.ended(1)
		}},

		// What is done to a running task.
		{name: "alloc exec", drivers: every, script: ready, act: func(o *one) {
			alloc := o.started()
			o.exec("ok", alloc, false, "", "/bin/sh", "-c", `echo "out $NOMAD_TASK_NAME"; echo err >&2`)
			o.exec("status 7", alloc, false, "", "/bin/sh", "-c", `exit 7`)
			o.exec("killed", alloc, false, "", "/bin/sh", "-c", `kill -KILL $$`)
			o.exec("by name", alloc, false, "", "sh", "-c", `echo found`)
			o.exec("directory", alloc, false, "", "/bin/sh", "-c", "pwd")
			o.exec("ids", alloc, false, "", "/bin/sh", "-c", "id -u; id -g; umask")
			o.exec("variables", alloc, false, "", "/bin/sh", "-c", "env | grep -v '^_=' | grep -v '^PWD=' | grep -v '^SHLVL=' | grep -v '^OLDPWD=' | sort | cut -d= -f1")
			o.exec("input", alloc, false, strings.Repeat("some input\n", 10_000), "/bin/cat")
			o.exec("large output", alloc, false, "", "/bin/sh", "-c", "head -c 1000000 /dev/zero | tr '\\000' x")
		}},
		{name: "alloc exec with terminal", script: ready, act: func(o *one) {
			alloc := o.started()
			o.exec("terminal", alloc, true, "", "/bin/sh", "-c", "test -t 0 && test -t 1 && test -t 2; echo tty=$?; exit 6")
		}},
		// Stock's exec and java neither answer to that nor to anything after it: the task cannot be stopped any more.
		{name: "alloc exec of a missing path", drivers: []string{"raw_exec", "docker"}, script: ready, act: func(o *one) {
			o.exec("missing", o.started(), false, "", "/no/such/program")
		}},
		{name: "alloc exec of a missing name", drivers: []string{"raw_exec", "docker"}, script: ready, act: func(o *one) {
			o.exec("missing", o.started(), false, "", "no-such-program")
		}},
		{name: "alloc exec of no program", drivers: []string{"raw_exec", "docker"}, script: ready, act: func(o *one) {
			o.exec("not executable", o.started(), false, "", "/etc/passwd")
		}},
		{name: "alloc exec of a missing path with terminal", drivers: []string{"raw_exec", "docker"}, script: ready, act: func(o *one) {
			o.exec("missing", o.started(), true, "", "/no/such/program")
		}},
		{name: "alloc exec as a user", script: ready, task: task{more: `user = "nobody"`}, act: func(o *one) {
			o.exec("ids", o.started(), false, "", "/bin/sh", "-c", "id -u; id -g")
		}},
		{name: "action", script: ready, task: task{more: "action \"greet\" {\n command = \"/bin/echo\"\n args = [\"good morning\"]\n}"}, act: func(o *one) {
			o.noteAction(o.started(), "greet")
		}},
		{name: "alloc signal", script: ready, act: func(o *one) {
			alloc := o.started()
			o.signal(alloc, "SIGUSR2")
			o.logged(alloc, "web", `^got USR2$`, 1)
			o.noteError("unknown task", o.api.Allocations().Signal(alloc, nil, "nobody", "SIGUSR2"))
			o.noteError("unknown signal", o.api.Allocations().Signal(alloc, nil, "web", "SIGNOPE"))
			if o.driver != "docker" {
				o.ended(1) // it was SIGINT
			}
		}},
		{name: "alloc restart", drivers: every, script: `echo ready; exec sleep 1000`, act: func(o *one) {
			alloc := o.started()
			o.must(o.api.Allocations().Restart(alloc, "web", nil))
			o.logged(alloc, "web", `^ready$`, 2)
			o.runsAgain("web")
		}},
		{name: "alloc restart of all", drivers: []string{"raw_exec"}, script: ready, others: []task{
			{name: "other", script: ready},
			{name: "first", script: `echo ready`, more: hook("prestart", false)},
		}, act: func(o *one) {
			alloc := o.started()
			// One that the server does not know to run yet, stock leaves alone for ever.
			o.until("both tasks run, as the server knows", func() bool {
				states := o.allocs()[0].TaskStates
				return states["web"].State == "running" && states["other"].State == "running"
			})
			o.logged(alloc, "other", `^ready$`, 1)
			o.must(o.api.Allocations().RestartAllTasks(alloc, nil))
			for _, task := range []string{"web", "other", "first"} {
				o.logged(alloc, task, `^ready$`, 2)
			}
			o.runsAgain("web")
			o.runsAgain("other")
		}},
		{name: "alloc stop", script: ready, act: func(o *one) {
			first := o.started()
			_, err := o.api.Allocations().Stop(first, nil)
			o.must(err)
			o.until("another one runs", func() bool { return o.count("complete") == 1 && o.count("running") == 1 })
			o.started()
		}},
		{name: "alloc fs", script: `echo content > $NOMAD_TASK_DIR/file; ` + ready, act: func(o *one) {
			alloc := o.started()
			o.noteFiles(alloc, "/")
			o.noteFiles(alloc, "web/local")
			o.noteFiles(alloc, "web/secrets")
			o.noteFiles(alloc, "web/nothing")
			stat, _, err := o.api.AllocFS().Stat(alloc, "web/local/file", nil)
			o.must(err)
			o.note("stat", fmt.Sprintf("%s %d %s", stat.Name, stat.Size, stat.FileMode))
			reader, err := o.api.AllocFS().Cat(alloc, "web/local/file", nil)
			o.must(err)
			defer reader.Close()
			text := make([]byte, 100)
			n, _ := reader.Read(text)
			o.note("cat", string(text[:n]))
		}},
		{name: "stats", drivers: every, script: `x=0123456789; n=0; while [ $n -lt 17 ]; do x=$x$x; n=$((n+1)); done; echo ready; while :; do sleep 0.1; done`, act: func(o *one) {
			o.noteStats(o.started())
		}},
		{name: "service with a check", drivers: onHost, script: `echo ready; mkdir -p $NOMAD_TASK_DIR/www; echo ok > $NOMAD_TASK_DIR/www/index.html
exec busybox httpd -f -p $NOMAD_PORT_http -h $NOMAD_TASK_DIR/www`, group: `
    network {
      port "http" {}
    }
    service {
      name     = "checked"
      provider = "nomad"
      port     = "http"
      check {
        type     = "http"
        path     = "/index.html"
        interval = "1s"
        timeout  = "1s"
      }
    }`, act: func(o *one) {
			alloc := o.started()
			o.until("the check passes", func() bool {
				checks, err := o.api.Allocations().Checks(alloc.ID, nil)
				if err != nil || len(checks) != 1 {
					return false
				}
				for _, check := range checks {
					return check.Status == "success"
				}
				return false
			})
		}},
		{name: "bridge network", drivers: every, network: true, needs: hasCNI, script: `
echo "fact links: $(ls /sys/class/net | sort | tr '\n' ' ')"
echo "fact port: $NOMAD_PORT_http"
echo "fact hosts: $(grep -c '^[^#]' /etc/hosts)"
echo "fact servers: $(grep -c nameserver /etc/resolv.conf)"
echo ready; sleep 1000`, group: "network {\n mode = \"bridge\"\n port \"http\" {\n to = 8080\n }\n}", act: func(o *one) {
			alloc := o.started()
			o.note("network", fmt.Sprintf("address %t, interface %t", alloc.NetworkStatus.Address != "", alloc.NetworkStatus.InterfaceName != ""))
		}},

		// What only one driver has.
		{name: "image missing", drivers: []string{"docker"}, task: task{program: "image = \"no.such.registry.invalid/image:1\"\n command = \"/bin/true\""}},
		{name: "entrypoint", drivers: []string{"docker"}, task: task{program: "entrypoint = [\"/bin/echo\", \"entry\"]\n args = [\"a\", \"b\"]"}},
		{name: "read-only root", drivers: []string{"docker"}, script: `echo x > /x; echo "status $?"; sleep 1`, task: task{config: "readonly_rootfs = true"}},
		{name: "container's settings", drivers: []string{"docker"}, script: `
echo "fact name: $(cat /proc/sys/kernel/hostname)"
echo "fact files: $(ulimit -n)"
echo "fact setting: $(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)"
echo "fact directory: $(pwd)"
sleep 1`, task: task{config: "hostname = \"inside\"\n ulimit {\n nofile = \"1000:2000\"\n}\n sysctl = {\n \"net.ipv4.ip_unprivileged_port_start\" = \"100\"\n}"}},
		{name: "class missing", drivers: []string{"java"}, task: task{class: "NoSuchClass"}},
		{name: "jar_path", drivers: []string{"java"}, task: task{program: "jar_path = \"local/app.jar\"\n args = [\"arguments\", \"from a jar\"]"}},
		{name: "jar missing", drivers: []string{"java"}, task: task{program: "jar_path = \"local/nothing.jar\""}},
		{name: "jvm_options", drivers: []string{"java"}, task: task{program: "class = \"App\"\n class_path = \"local/app.jar\"\n jvm_options = [\"-Xmx16m\", \"-Dno.such=1\", \"--no-such-option\"]"}},
	}
}

// references are what Nomad replaces in arguments, and what it leaves.
const references = `"${NOMAD_TASK_NAME}", "${NOMAD_META_color}", "${attr.kernel.name}", "${node.class}", "${NOMAD_ALLOC_INDEX}", "${env["NOMAD_GROUP_NAME"]}",
          "${NOMAD_NOTHING}", "$HOME", "a  b", "", "grün", "--flag=${NOMAD_JOB_NAME}"`

func ownScript(mode string) string {
	return fmt.Sprintf("template {\n data = \"#!/bin/sh\\necho from a script; sleep 1\\n\"\n destination = \"local/run.sh\"\n perms = %q\n}", mode)
}

func artifact(name, more string) string {
	return fmt.Sprintf("\nartifact {\n source = \"http://%s/%s\"\n %s\n}\n", filesAddress, name, more)
}

// hook has a task run at a moment of its allocation.
func hook(when string, sidecar bool) string {
	return fmt.Sprintf("lifecycle {\n hook = %q\n sidecar = %t\n}", when, sidecar)
}

// ownTemplate renders the job's own variable (setVariable), and does something when that changes.
func ownTemplate(mode, more string) string {
	return fmt.Sprintf(`
      template {
        data        = "{{ with nomadVar (print \"nomad/jobs/\" (env \"NOMAD_JOB_ID\")) }}value {{ .value }}{{ end }}\n"
        destination = "local/value"
        change_mode = %q
        %s
      }`, mode, more)
}

func variable(value string) func(*one) { return func(o *one) { setVariable(o, value) } }

func setVariable(o *one, value string) {
	o.Helper()
	path := "nomad/jobs/" + o.job
	var err error
	// An agent answers before it has made its first key.
	o.until("variables can be written", func() bool {
		_, _, err = o.api.Variables().Create(&api.Variable{Path: path, Items: api.VariableItems{"value": value}}, nil)
		return err == nil || !strings.Contains(err.Error(), "keyring has not been initialized")
	})
	o.must(err)
}

// inTask is a path in the task's directory, as the task sees it.
func (o *one) inTask(path string) string {
	if o.driver == "raw_exec" {
		return filepath.Join(o.a.AllocDir(o.allocs()[0].ID), "web", path)
	}
	return "/" + path
}

func (o *one) signal(alloc *api.Allocation, name string) {
	o.Helper()
	o.must(o.api.Allocations().Signal(alloc, nil, "web", name))
}

// noteFiles keeps what is in a directory of an allocation.
func (o *one) noteFiles(alloc *api.Allocation, path string) {
	found, _, err := o.api.AllocFS().List(alloc, path, nil)
	o.noteError("files of "+path+": error", err)
	lines := []string{}
	for _, file := range found {
		size := ""
		if !file.IsDir {
			size = fmt.Sprint(" ", file.Size)
		}
		lines = append(lines, fmt.Sprintf("%s %s%s", file.FileMode, file.Name, size))
	}
	slices.Sort(lines)
	o.note("files of "+path, strings.Join(lines, "\n"))
}

func (o *one) noteAction(alloc *api.Allocation, name string) {
	o.Helper()
	command := o.a.Command("action", "-i=false", "-t=false", "-job", o.job, "-alloc", alloc.ID, "-group", "g", "-task", "web", name)
	out, err := command.CombinedOutput()
	o.noteError("action: error", err)
	o.note("action: output", string(out))
}

// noteStats keeps which statistics there are of a task that is ready: the names of all values, and what is said to be measured.
func (o *one) noteStats(alloc *api.Allocation) {
	o.Helper()
	// The agent keeps the last sample, which may be of the task's first instant: a cgroup then counts no memory yet.
	ready := time.Now().UnixNano()
	var stats struct {
		ResourceUsage map[string]any
		Tasks         map[string]struct {
			Timestamp     int64
			Pids          map[string]any
			ResourceUsage map[string]map[string]any
		}
	}
	o.until("statistics come", func() bool {
		err := o.a.Get("/v1/client/allocation/"+alloc.ID+"/stats", &stats)
		return err == nil && stats.Tasks["web"].Timestamp > ready &&
			fmt.Sprint(stats.Tasks["web"].ResourceUsage["CpuStats"]["Measured"]) != "<nil>" &&
			stats.Tasks["web"].ResourceUsage["MemoryStats"] != nil
	})
	o.note("statistics of", strings.Join(slices.Sorted(maps.Keys(stats.ResourceUsage)), " "))
	o.note("processes counted", fmt.Sprint(len(stats.Tasks["web"].Pids) > 0))
	for name, values := range stats.Tasks["web"].ResourceUsage {
		o.note(name+": names", strings.Join(slices.Sorted(maps.Keys(values)), " "))
		measured := []string{}
		list, _ := values["Measured"].([]any)
		for _, one := range list {
			measured = append(measured, fmt.Sprint(one))
		}
		slices.Sort(measured)
		o.note(name+": measured", strings.Join(measured, " "))
		// A text of 1.25 MiB is in memory, whatever else is.
		for _, key := range []string{"RSS", "Usage"} {
			if value, ok := values[key].(float64); ok {
				o.note(name+": "+key+" is more than nothing", fmt.Sprint(value > 0))
			}
		}
	}
}

func hasCNI() bool {
	_, err := exec.LookPath("iptables")
	for _, dir := range []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"} {
		if _, missing := os.Stat(filepath.Join(dir, "bridge")); missing == nil && err == nil {
			return true
		}
	}
	return false
}

// on are the drivers that a kind is run with here.
func (k kind) on() []string {
	if k.needs != nil && !k.needs() {
		return nil
	}
	if k.drivers == nil {
		return shells
	}
	return k.drivers
}

// find is a kind by name.
func find(name string) kind {
	for _, kind := range trialKinds() {
		if kind.name == name {
			return kind
		}
	}
	panic("no kind " + name)
}

// text is the job file.
func (k kind) text(o *one) string {
	first := k.task
	first.name, first.script = "web", k.script
	tasks := append([]task{first}, k.others...)
	blocks := ""
	for _, task := range tasks {
		task.driver = o.driver
		// A script is run by what changes a template, too: it has to know whom it signals.
		task.script = strings.Replace(task.script, "echo ready", "echo $$ > $NOMAD_TASK_DIR/pid; echo ready", 1)
		if o.driver == "docker" && !k.network {
			task = docker(task)
		}
		blocks += task.block()
	}
	schedule := k.schedule
	if schedule == "" && k.act != nil {
		schedule = "service"
	}
	if schedule == "" {
		schedule = "batch"
	}
	policy := noRestart
	const none = "reschedule {\n attempts = 0\n unlimited = false\n}"
	if strings.Contains(k.group, "restart {") {
		policy = ""
		if !strings.Contains(k.group, "reschedule {") {
			policy = none
		}
	}
	if schedule == "system" || schedule == "sysbatch" {
		policy = "" // they know no rescheduling
		if schedule == "sysbatch" && strings.HasPrefix(release(o.T), "1.10.") {
			policy = none // which wants to hear so of it
		}
	}
	return fmt.Sprintf("job %q {\n type = %q\n %s\n group \"g\" {\n %s\n %s\n %s\n }\n}", o.job, schedule, k.header, policy, k.group, blocks)
}

// Each kind has a name of its own, and there are as many as promised.
func TestN1TrialHasItsKinds(t *testing.T) {
	seen := map[string]bool{}
	for _, kind := range trialKinds() {
		if seen[kind.name] {
			t.Errorf("%s is there twice", kind.name)
		}
		seen[kind.name] = true
		for _, driver := range kind.on() {
			if !slices.Contains(every, driver) {
				t.Errorf("%s: no driver %s", kind.name, driver)
			}
		}
	}
	if len(seen) < 60 {
		t.Errorf("%d kinds", len(seen))
	}
}
