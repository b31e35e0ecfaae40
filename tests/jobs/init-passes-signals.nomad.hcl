# Below an init the same program ends by its signal.
# meanwhile: grep -q "Task started" $OUT
# never: has no effect
# status: 143

job "sleep" {
  group "sleep" {
    task "sleep" {
      driver       = "exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "60s"

      config {
        command = "/bin/sleep"
        args    = ["1000"]
        init    = true
      }
    }
  }
}
