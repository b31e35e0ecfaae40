# A task gets the signal that it asks for when it is stopped.
# meanwhile: grep -q ready $OUT
# prints: drained
# status: 143

job "drain" {
  group "drain" {
    task "server" {
      driver       = "raw_exec"
      kill_signal  = "SIGQUIT"
      kill_timeout = "20s"

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'echo drained; exit 0' QUIT; echo ready; while :; do sleep 1 & wait; done"]
      }
    }
  }
}
