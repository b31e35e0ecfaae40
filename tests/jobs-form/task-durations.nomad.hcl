job "task-durations" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      kill_timeout = 5000000000
      shutdown_delay = "1h2m3.5s"
    }
  }
}
