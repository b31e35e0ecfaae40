job "task-schedule" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      schedule {
        cron {
          start = "0 8 * * *"
          end = "0 18"
          timezone = "UTC"
        }
      }
    }
  }
}
