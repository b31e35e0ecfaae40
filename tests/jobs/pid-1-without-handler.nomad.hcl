# A program that is pid 1 and has no handler does not notice its signal, and an event says so.
# meanwhile: grep -q "Task started" $OUT
# prints: SIGTERM has no effect: the command is pid 1
# prints: init = true
# status: 137

job "sleep" {
  group "sleep" {
    task "sleep" {
      driver       = "exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "1s"

      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
