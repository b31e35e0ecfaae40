# A task that does not end in time is killed.
# meanwhile: grep -q ready $OUT
# status: 137

job "stubborn" {
  group "stubborn" {
    task "server" {
      driver       = "exec"
      kill_timeout = "1s"

      config {
        command = "/bin/sh"
        args    = ["-c", "trap '' INT TERM; echo ready; while :; do sleep 1; done"]
      }
    }
  }
}
