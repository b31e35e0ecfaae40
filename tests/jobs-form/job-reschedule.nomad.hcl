job "job-reschedule" {
  reschedule {
    attempts = 3
    interval = "1h"
    delay = "10s"
    delay_function = "fibonacci"
    max_delay = "5m"
    unlimited = false
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
