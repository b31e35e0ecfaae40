# A script check runs inside the task.
# meanwhile: $AGENTBIN services --json | grep -q '"passing"'
# status: 143

job "queue" {
  group "queue" {
    task "queue" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      service {
        name     = "queue"
        provider = "consul"

        check {
          name     = "is empty"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "test $(cat local/length) = 0"]
          interval = "1s"
          timeout  = "5s"
        }
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; echo 5 > local/length; sleep 2; echo 0 > local/length; while :; do sleep 1 & wait; done"]
      }
    }
  }
}
